# SPDX-License-Identifier: MIT
# The tests on pretended OS pages of 16 and 64 KiB: a quick part of them, or all where QUIRE_TEST_LONG is set when the preset is configured.
# By hand: QUIRE_TEST_PAGE_BYTES=65536 build/check/test/test_unit
set(not_there
  # It asks the kernel.
  Os.the_page_size_is_the_kernels
  # Their bounds are what memory costs in pages of 4 KiB.
  HeapSource.blocks_lie_in_the_buffer_that_was_given_and_fill_it HeapLimit.is_used_nearly_in_full_never_passed_and_the_heap_stays_usable
  HeapMemory.churn_with_drifting_sizes_stays_flat HeapRealloc.a_large_block_that_grows_by_small_steps_is_mapped_alone_after_some
  PercpuMemory.after_a_random_nine_tenths_are_freed_trim_gives_back_half_of_what_packing_would PercpuMemory.trim_keeps_every_byte_that_lives_on_every_cpu
  PercpuMemory.a_chunk_is_at_most_four_mappings PercpuChunks.empty_chunks_go_at_once_and_the_last_with_a_trim
  PercpuChunks.bookkeeping_is_at_most_8_percent_of_one_unit_whatever_the_number_of_cpus PercpuLook.chunks_and_their_peak_and_the_peak_of_bytes_stay
  PercpuLimit.is_used_nearly_in_full_and_never_passed Histogram.its_end_clears_what_was_written_and_commits_nothing
  # Unsteady on pages of 64 KiB: in some runs a part of its caches has been emptied when it looks.
  SlabCache.more_slabs_than_a_thread_has_gates_are_all_cached
  # Their pages of elements are of 16 KiB.
  Aral.the_process_wide_largest_page_holds_for_arrays_that_exist_from_their_next_page_on AralRace.a_page_size_set_at_any_moment_of_a_creation_holds_for_the_array
)
list(JOIN not_there ":" not_there)

function(quire_on_pages kind name filter)
  foreach(kib 16 64)
    math(EXPR bytes "${kib} * 1024")
    set(test ${kind}.on_pages_of_${kib}_kib_${name})
    add_test(NAME ${test} COMMAND test_${kind} --gtest_filter=${filter}-${not_there} --gtest_brief=1)
    set_tests_properties(${test} PROPERTIES ENVIRONMENT QUIRE_TEST_PAGE_BYTES=${bytes} TIMEOUT 600 LABELS ${kind}
      ENVIRONMENT_MODIFICATION QUIRE_TEST_LONG=unset:) # fifty times the programs are for the kernel's own pages
  endforeach()
endfunction()

if(DEFINED ENV{QUIRE_TEST_LONG})
  foreach(kind unit model fault death)
    quire_on_pages(${kind} everything "*")
  endforeach()
else()
  quire_on_pages(model some_programs "*Model.random_programs_of_one_thread*:ArenaModel.random*:PercpuModel.*threads_take_turns*:HeapModel.*threads_take_turns*")
  quire_on_pages(unit some "Pagemap*:Os.*:Source.*:SourceFixed.finds*:SlabDecay.*:SlabLook.a_page*:HeapTrim.*:Percpu.objects_of_every*:Percpu.sizes*:Percpu.creating*:Prof.a_*")
endif()
