# SPDX-License-Identifier: MIT
# The tests on pretended OS pages of 16 and 64 KiB: a quick part of them, or all where QUIRE_TEST_LONG is set when the preset is configured.
# By hand: QUIRE_TEST_PAGE_BYTES=65536 build/check/test/test_unit
# And as on a machine of 64 CPUs: what is bounded by so much a CPU.  By hand: QUIRE_TEST_CPUS=64 build/check/test/test_unit
function(quire_on_pages kind name filter)
  foreach(kib 16 64)
    math(EXPR bytes "${kib} * 1024")
    set(test ${kind}.on_pages_of_${kib}_kib_${name})
    add_test(NAME ${test} COMMAND test_${kind} --gtest_filter=${filter} --gtest_brief=1)
    set_tests_properties(${test} PROPERTIES ENVIRONMENT QUIRE_TEST_PAGE_BYTES=${bytes} TIMEOUT 600 LABELS ${kind}
      ENVIRONMENT_MODIFICATION QUIRE_TEST_LONG=unset:) # fifty times the programs are for the kernel's own pages
  endforeach()
endfunction()

if(DEFINED ENV{QUIRE_TEST_LONG})
  foreach(kind unit model fault race death)
    quire_on_pages(${kind} everything "*")
  endforeach()
else()
  quire_on_pages(model some_programs "*Model.random_programs_of_one_thread*:ArenaModel.random*:PercpuModel.*threads_take_turns*:HeapModel.*threads_take_turns*")
  quire_on_pages(unit some "Pagemap*:Os.*:Source.*:SourceFixed.finds*:SlabDecay.*:SlabLook.a_page*:HeapTrim.*:Percpu.objects_of_every*:Percpu.sizes*:Percpu.creating*:Prof.a_*")
endif()
add_test(NAME unit.on_64_cpus_some COMMAND test_unit --gtest_brief=1
  --gtest_filter=SlabCache.*:SlabDecay.*:SlabTrim.*:SlabMemory.*os_pages:SourceDefault.*:HeapRealloc.*:HeapTrim.*:HeapMemory.*:Percpu.*:Counter.*:Os.the_cpu*)
set_tests_properties(unit.on_64_cpus_some PROPERTIES ENVIRONMENT QUIRE_TEST_CPUS=64 TIMEOUT 600 LABELS unit)
