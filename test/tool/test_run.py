# SPDX-License-Identifier: MIT
"""test_run - quire run: status and streams go through, the report adds up, conditions are judged, what cannot be served is refused."""

import json
import os
import resource
import signal
import subprocess
import sys

import pytest
import toolkit
from manners import Running
from toolkit import quire

import cmd_run
import conditions
import runreport
from errors import QuireError, UsageError

PROGRAM = """
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    char *kept[64];
    const char *what = argc > 1 ? argv[1] : "";
    for (int i = 0; i < 64; i++) memset(kept[i] = malloc(1000), 1, 1000);
    for (int i = strcmp(what, "leak") ? 0 : 3; i < 64; i++) free(kept[i]);
    if (!strcmp(what, "large")) { char *p = malloc(64 << 20); if (!p) { puts("refused"); return 9; } memset(p, 1, 64 << 20); free(p); }
    if (!strcmp(what, "abort")) abort();
    if (!strcmp(what, "_exit")) _exit(5);
    if (!strcmp(what, "_exit0")) _exit(0);
    if (!strcmp(what, "sleep")) { puts("ready"); fflush(stdout); pause(); }
    if (!strcmp(what, "echo")) { char line[64]; while (fgets(line, sizeof line, stdin)) fputs(line, stdout); }
    return !strcmp(what, "fail") ? 7 : 0;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    if not (toolkit.BUILD / "libquire-malloc.so").exists():
        pytest.skip("libquire-malloc.so is not built")
    return toolkit.build(tmp_path_factory.mktemp("run"), PROGRAM)


def report(tmp_path, program, *words, options=()):
    """(the finished process, its JSON report)."""
    done = quire(tmp_path, "run", "--stats=json:report.json", "-f", *options, "--", program, *words)
    return done, json.loads((tmp_path / "report.json").read_text())


# ---- status and streams ----


@pytest.mark.parametrize(("word", "status"), [("", 0), ("fail", 7), ("_exit", 5), ("abort", 134)])
def test_the_status_of_the_program_goes_through(tmp_path, program, word, status):
    assert quire(tmp_path, "run", "--", program, word).returncode == status


def test_the_programs_streams_are_its_own_and_the_report_is_on_standard_error(tmp_path, program):
    done = quire(tmp_path, "run", "--", program, "echo", input="one\ntwo\n")
    assert done.stdout == "one\ntwo\n"
    assert "RSS explained" in done.stderr


def test_a_program_that_is_not_there_is_127_and_one_that_may_not_run_126(tmp_path, program):
    (tmp_path / "plain").write_text("no program")
    assert quire(tmp_path, "run", "--", "no-such-program-here").returncode == 127
    assert quire(tmp_path, "run", "--", "./plain").returncode == 126


def test_a_signal_for_the_tool_goes_on_to_the_program(tmp_path, program):
    running = Running(tmp_path, "run", "--", program, "sleep").until("ready")
    assert running.stop(signal.SIGTERM) == 128 + signal.SIGTERM
    assert "ended by SIGTERM" in running.said


# ---- the report ----


def test_resident_memory_is_explained_and_the_parts_add_up(tmp_path, program):
    _, full = report(tmp_path, program)
    parts = full["report"]["rss_explained"]
    total = sum((-1 if sign == "-" else 1) * parts[key] for key, sign, _ in runreport.EXPLAINED)
    assert full["schema"] == "quire.run/1"
    assert total == parts["rss_bytes"]
    assert full["peak_rss_bytes"] >= parts["rss_bytes"] > 0


def test_the_size_class_of_what_was_allocated_is_there_with_its_peak(tmp_path, program):
    _, full = report(tmp_path, program)
    slots = {c["slot_bytes"]: c for c in full["report"]["classes"]}
    mine = slots[min(s for s in slots if s >= 1000)]
    assert mine["slot_bytes"] <= 1125 and mine["peak_bytes"] >= 64 * 1000


@pytest.mark.parametrize("form", [[], ["--stats=json"]])
@pytest.mark.parametrize("status", [0, 7])
def test_a_report_that_standard_error_does_not_take_is_no_success(form, status):
    words = [sys.executable, toolkit.TOOL, "run", *form, "--", "sh", "-c", f"exit {status}"]
    with open("/dev/full", "w", encoding="ascii") as full:
        done = subprocess.run(words, env={**os.environ, "QUIRE_BUILD_DIR": str(toolkit.BUILD)}, stderr=full)
    assert done.returncode == (status or 125)
    reader, writer = os.pipe()
    os.close(reader)  # a reader that goes away knows it
    done = subprocess.run(words, env={**os.environ, "QUIRE_BUILD_DIR": str(toolkit.BUILD)}, stderr=writer)
    os.close(writer)
    assert done.returncode == status


def test_what_is_live_at_the_end_of_other_processes_is_told_where_the_first_alone_is_judged(tmp_path):
    child = "#include <stdlib.h>\n#include <sys/wait.h>\n#include <unistd.h>\nvoid *volatile keep;\nint main(void) { if (fork() == 0) { for (int i = 0; i < 1000; i++) keep = malloc(1000); exit(0); } return wait(0) < 0; }\n"
    done = quire(tmp_path, "run", "--fail-on", "blocks>0", "--fail-on", "leaks>0", "--", toolkit.build(tmp_path, child, "children"))
    assert done.returncode == 0 and "no block is live at exit" in done.stderr
    assert "--fail-on looks at children alone; its other processes had 1,000 blocks" in done.stderr
    assert done.stderr.count("1,000 blocks with room for 1.0 MB live at exit") == 2


def test_leaks_that_are_all_suppressed_are_none(tmp_path, program):
    (tmp_path / "known").write_text("leak:*\nleak:main\n")
    done = quire(tmp_path, "run", "--leaks", "--suppressions", "known", "--fail-on", "leaks>0", "--fail-on", "blocks>0", "--", program, "leak")
    assert done.returncode == 0 and "of these suppressed" in done.stderr, done.stderr


def test_leaks_are_counted_and_listed_when_asked_for(tmp_path, program):
    done, full = report(tmp_path, program, "leak", options=["--leaks"])
    mine = [k for k in full["report"]["leaks"] if 1000 <= k["size_bytes"] <= 1125]
    assert done.returncode == 0 and mine[0]["count"] == 3
    text = quire(tmp_path, "run", "--leaks", "--", program, "leak").stderr
    assert "3 of up to 1,0" in text


@pytest.mark.parametrize("more", [[], ["--leaks"]])
@pytest.mark.parametrize("condition, status", [("leaks>129999", 1), ("leaks>130000", 0)])
def test_leaks_are_judged_by_what_was_asked_for(tmp_path, more, condition, status):
    loses = toolkit.build(tmp_path, "#include <stdlib.h>\nint main(void) { for (int i = 0; i < 1000; i++) { volatile char *p = malloc(130); p[0] = 1; } return 0; }", "loses")
    done = quire(tmp_path, "run", *more, "--fail-on", condition, "--", loses)
    assert done.returncode == status, done.stderr
    assert "live at exit: 1,000 blocks, 130 KB" in done.stderr and "1,000 of up to 144 bytes" in done.stderr


DROPS = """
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(void) {
    if (setgid(65534) || setuid(65534)) return 3;
    for (int i = 0; i < 2000; i++) { volatile char *p = malloc(i + 1); p[0] = 1; if (i) free((void *)p); }
    if (fork() == 0) exit(0);
    return 0;
}
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give it up")
def test_a_program_that_gives_its_rights_up_leaves_its_report_and_its_leaks(tmp_path):
    done = quire(tmp_path, "run", "--leaks", "--strict", "--", toolkit.build(tmp_path, DROPS, "drops"))
    assert done.returncode == 0 and "RSS explained" in done.stderr and "main (drops.c:7)" in done.stderr
    assert "cannot" not in done.stderr and "no report" not in done.stderr, done.stderr


def test_a_limit_is_an_allocation_that_fails_and_no_crash(tmp_path, program):
    done = quire(tmp_path, "run", "--limit", "32M", "--", program, "large")
    assert (done.returncode, done.stdout) == (9, "refused\n")


def test_secure_is_said_in_the_report(tmp_path, program):
    _, full = report(tmp_path, program, options=["--secure"])
    assert full["report"]["secure"] is True


def test_prometheus_is_its_text_format(tmp_path, program):
    done = quire(tmp_path, "run", "--stats=prom:r.prom", "--", program)
    text = (tmp_path / "r.prom").read_text()
    assert done.returncode == 0 and "# TYPE quire_exit_rss_peak_bytes gauge" in text


@pytest.mark.parametrize("name", ["50%p", "a,b"])
def test_a_report_is_found_wherever_temporary_files_are(tmp_path, program, name):
    (tmp_path / name).mkdir()
    done = quire(tmp_path, "run", "--", program, environment={"TMPDIR": str(tmp_path / name)})
    assert done.returncode == 0 and "RSS explained" in done.stderr


def test_a_report_of_a_shells_child_stands_for_the_shell(tmp_path, program):
    done = quire(tmp_path, "run", "--", "sh", "-c", f"{program}; kill -9 $$")
    assert done.returncode == 137
    assert "the largest process that did" in done.stderr and "heap:" in done.stderr


def test_a_program_that_ends_by_a_signal_has_its_end_told_without_a_report(tmp_path, program):
    for options in ([], ["--stats=json:report.json"]):
        done = quire(tmp_path, "run", *options, "--", program, "abort")
        assert done.stderr.count("ended by SIGABRT") == 1, done.stderr


def test_a_file_for_the_report_in_quire_conf_is_said_to_be_left_alone(tmp_path, program):
    for conf, said in (("leaks:1,stats:exit=mine", True), ("stats:exit", False)):
        done = quire(tmp_path, "run", "--", program, environment={"QUIRE_CONF": conf})
        assert done.returncode == 0 and not (tmp_path / "mine").exists()
        assert ("--stats=text:FILE" in done.stderr) is said


def test_a_report_never_overwrites_a_file_unasked(tmp_path, program):
    (tmp_path / "mine").write_text("precious")
    done = quire(tmp_path, "run", "--stats=json:mine", "--", program)
    assert done.returncode == 2 and (tmp_path / "mine").read_text() == "precious"


def test_a_directory_for_the_report_is_refused_before_anything_runs(tmp_path, program):
    done = quire(tmp_path, "run", "-f", "--stats=json:.", "--", program, "echo", input="ran\n")
    assert (done.returncode, done.stdout) == (2, "") and "is a directory" in done.stderr


def test_a_report_goes_to_a_device_without_force(tmp_path, program):
    done = quire(tmp_path, "run", "--stats=json:/dev/stderr", "--", program)
    assert done.returncode == 0 and json.loads(done.stderr)["schema"] == "quire.run/1"


@pytest.mark.parametrize(("word", "status"), [("", 125), ("fail", 7)])
def test_a_report_that_cannot_be_written_names_its_file_and_takes_no_failure_away(
    tmp_path, program, word, status
):
    done = quire(tmp_path, "run", "-f", "--stats=json:/dev/full", "--", program, word)
    assert done.returncode == status
    assert "cannot write the report to /dev/full" in done.stderr and "fix:" in done.stderr


def test_a_report_that_does_not_fit_leaves_no_part_of_itself_and_an_old_one_as_it_was(tmp_path, monkeypatch):
    new, old = tmp_path / "new", tmp_path / "old"
    old.write_text("as it was")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        lacking = [cmd_run.write(str(path), "x" * 1000, force) for path, force in ((new, False), (old, True))]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert all("cannot write the report to" in str(error) for error in lacking)
    assert [p.name for p in tmp_path.iterdir()] == ["old"] and old.read_text() == "as it was"


# ---- conditions ----


@pytest.mark.parametrize(
    ("condition", "status"),
    [("peak>1K", 1), ("peak>1G", 0), ("leaks>=3000", 1), ("blocks<1", 0), ("time>60s", 0)],
)
def test_a_condition_that_holds_is_status_1(tmp_path, program, condition, status):
    done = quire(tmp_path, "run", "--fail-on", condition, "--", program, "leak")
    assert done.returncode == status
    assert (f"--fail-on: {condition} holds" in done.stderr) == (status == 1)


def test_the_programs_own_failure_comes_before_a_condition(tmp_path, program):
    assert quire(tmp_path, "run", "--fail-on", "peak>1K", "--", program, "fail").returncode == 7


@pytest.mark.parametrize(("script", "status"), [("kill -9 $$", 137), ("exit 7", 7)])
def test_a_condition_takes_no_status_from_a_program_that_ended_badly(tmp_path, script, status):
    done = quire(tmp_path, "run", "--fail-on", "leaks>1T", "--", "sh", "-c", script)
    assert done.returncode == status and "quire run: sh" in done.stderr


def test_a_condition_without_a_report_to_judge_is_the_tools_failure(tmp_path, program):
    done = quire(tmp_path, "run", "--fail-on", "live>1", "--", program, "_exit0")
    assert done.returncode == 125 and "cannot be judged" in done.stderr
    assert quire(tmp_path, "run", "--fail-on", "live>1", "--", program, "_exit").returncode == 5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("peak", "is no condition"),
        ("peek>1M", "did you mean `peak`?"),
        ("peak>1ms", "units: B, K, M, G, T"),
        ("time>1M", "units: s, ms, us"),
    ],
)
def test_a_condition_that_says_nothing_is_refused_with_what_would_do(text, said):
    with pytest.raises(UsageError) as refused:
        conditions.parse(text)
    assert said in refused.value.text()


@pytest.mark.parametrize(
    ("text", "peak", "held"),
    [
        ("peak>24M", 24 << 20, False),
        ("peak>24M", (24 << 20) + 1, True),
        ("peak >= 24M", 24 << 20, True),
        ("peak<1K", 1023, True),
        ("peak==1.5K", 1536, True),
        ("peak!=1536", 1536, False),
    ],
)
def test_conditions_compare_with_units_of_1024(text, peak, held):
    assert conditions.holds(conditions.parse(text), {"peak_rss_bytes": peak}, "x") is held


def test_a_condition_on_what_the_report_lacks_names_the_program():
    with pytest.raises(QuireError) as failed:
        conditions.holds(conditions.parse("live>1"), {"report": None}, "jq")
    assert "jq left no report" in failed.value.text()


# ---- refusals ----


def test_a_static_program_is_refused_with_the_reason(tmp_path, program):
    static = toolkit.build(tmp_path, "int main(void) { return 0; }", "static", ["-static"])
    done = quire(tmp_path, "run", "--", static)
    assert done.returncode == 3 and "static binary" in done.stderr


def test_a_program_with_a_malloc_inside_is_refused_with_the_reason(tmp_path, program):
    source = "#include <stddef.h>\nvoid *malloc(size_t n) { static char a[9999]; return a; } int main(void) { return !malloc(1); }"
    own = toolkit.build(tmp_path, source, "own")
    done = quire(tmp_path, "run", "--", own)
    assert done.returncode == 3 and "own malloc inside" in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--stats=xml"], "there are: text, json, prom"),
        (["--limit", "lots"], "is no size"),
        (["--stats=prom", "--fail-on", "peak>1M"], "reads the JSON report"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_runs(
    tmp_path, program, options, said
):
    done = quire(tmp_path, "run", *options, "--", program, "fail")
    assert done.returncode == 2 and said in done.stderr


def test_run_and_check_import_only_the_standard_library():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import cmd_run, cmd_check;"
        "bad = {'numpy', 'rich', 'matplotlib', 'jinja2'} & set(sys.modules); sys.exit(bool(bad))"
    )
    assert subprocess.run([sys.executable, "-c", code, str(toolkit.TOOL)]).returncode == 0


LEAKY = """
#include <stdlib.h>
#include <string.h>
static void *kept[1000];
__attribute__((noinline)) static void *make_node(void) { return malloc(48); }
__attribute__((noinline)) static void keep(void) { for (int i = 0; i < 1000; i++) kept[i] = make_node(); }
__attribute__((noinline)) static void lose(void) { for (int i = 0; i < 500; i++) { volatile char *p = malloc(200); p[0] = 1; if (i % 10) free((void *)p); } }
int main(void) { keep(); lose(); return 0; }
"""


@pytest.mark.parametrize("before", [[], ["env", "A=1"]])
def test_leaks_come_with_the_stacks_that_allocated_them(tmp_path, before):
    program = toolkit.build(tmp_path, LEAKY, "leaky")
    done = quire(tmp_path, "run", "--leaks", "--stats=json:a.json", "--", *before, program)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "a.json").read_text())
    first, second = report["leak_sites"][:2]
    assert (first["count"], first["bytes"]) == (1000, 48000) and (second["count"], second["bytes"]) == (50, 10000)
    assert [frame.split()[0] for frame in first["stack"]] == ["make_node", "keep", "main"]
    assert second["stack"][0] == "lose (leaky.c:7)" and report["leak_sites_note"] == ""
    assert sum(site["count"] for site in report["leak_sites"]) == report["report"]["leaked_blocks"]


def test_the_text_shows_who_allocated_what_was_live(tmp_path):
    done = quire(tmp_path, "run", "--leaks", "--", toolkit.build(tmp_path, LEAKY, "leaky"))
    assert "1,000 blocks, 48.0 KB: make_node (leaky.c:5)" in done.stderr and "< keep (leaky.c:6)" in done.stderr
    assert list(tmp_path.glob("*.qtr*")) == []


def test_leaks_without_a_recorder_are_the_sums_alone(tmp_path, monkeypatch):
    import leaksites
    from errors import EnvironmentLacks

    def nowhere(name):
        raise EnvironmentLacks(f"the helper {name} is not built")

    monkeypatch.setattr(leaksites.native, "helper", nowhere)
    assert leaksites.watching({"LD_PRELOAD": "x"}, str(tmp_path)) == {"LD_PRELOAD": "x"}
    assert leaksites.collect(str(tmp_path), 1) == ([], [], "there are no stacks: the recorder was not loaded")


@pytest.mark.by_turns
def test_suppressions_take_stacks_by_function_module_and_file_and_say_what_they_took(tmp_path):
    program = toolkit.build(tmp_path, LEAKY, "leaky")
    (tmp_path / "known").write_text("# the table of nodes\n\nleak:^keep$\n  leak:never\n")
    (tmp_path / "more").write_text("leak:lea*.c$\n")
    words = ["run", "--leaks", "--suppressions", "known", "--fail-on", "blocks>50", "--stats=json:a.json", "-f", "--", program]
    done = quire(tmp_path, *words)
    report = json.loads((tmp_path / "a.json").read_text())
    assert done.returncode == 0, done.stderr
    assert report["leak_suppressed"] == [{"line": "leak:^keep$", "count": 1000, "bytes": 48000}]
    assert [site["stack"][0] for site in report["leak_sites"]] == ["lose (leaky.c:7)"] and report["report"]["leaked_blocks"] == 1050
    assert quire(tmp_path, *(word.replace(">50", ">49") if isinstance(word, str) else word for word in words)).returncode == 1
    # both places are read, and the program's own directory too
    said = quire(tmp_path / "..", "run", "--leaks", "--suppressions", tmp_path / "known", "--", program, environment={"LSAN_OPTIONS": "verbosity=0:suppressions=more"}).stderr
    assert "  of these suppressed: 1,050 blocks, 58.0 KB\n       1,000 blocks, 48.0 KB by leak:^keep$\n          50 blocks, 10.0 KB by leak:lea*.c$\n" in said
    assert "allocated by" not in said


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("keep", "keeper", True), ("^keep", "keeper", True), ("^eep", "keeper", False), ("eep$", "keep", True), ("eep$", "keeper", False),
        ("k*r", "a keeper", True), ("^k*p$", "keep", True), ("^k*p$", "keeper", False), ("*", "any", True), ("operator new[]", "operator new[](unsigned long)", True),
        ("a.c", "abc", False), ("x+", "x+", True),
    ],
)  # fmt: skip
def test_a_suppressions_pattern_is_as_leak_sanitizer_has_it(pattern, name, fits):
    import suppressions

    assert bool(suppressions.pattern(pattern).search(name)) == fits


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("leak:a\nrace:b\n", "quire: known:2: `race:b` is no suppression: a line is leak:pattern, or a comment after #\n"),
        ("leak:\n", "quire: known:1: `leak:` is no suppression"),
        (None, "quire: cannot read the suppressions known: No such file or directory\n"),
    ],
)
@pytest.mark.parametrize("way", ["option", "environment"])
def test_a_bad_file_of_suppressions_is_one_line_before_anything_runs(tmp_path, program, text, said, way):
    if text is not None:
        (tmp_path / "known").write_text(text)
    options = ["--suppressions", "known"] if way == "option" else []
    done = quire(tmp_path, "run", "--leaks", *options, "--", program, "fail", environment={"LSAN_OPTIONS": "" if options else "suppressions=known"})
    assert done.returncode == 3 and done.stderr.startswith(said) and done.stderr.count("\n") == 1
    assert quire(tmp_path, "run", "--suppressions", "known", "--", program).returncode == 2


def test_a_server_that_ends_by_sigterm_leaves_its_leaks_with_stacks(tmp_path):
    source = LEAKY.replace("lose(); return 0;", 'lose(); puts("ready"); fflush(stdout); pause();').replace("#include <stdlib.h>", "#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>")
    running = Running(tmp_path, "run", "--leaks", "--", toolkit.build(tmp_path, source, "server")).until("ready")
    assert running.stop(signal.SIGTERM) == 128 + signal.SIGTERM
    assert "ended by SIGTERM" in running.said and "1,000 blocks, 48.0 KB: make_node (server.c:7)" in running.said, running.said
    assert "50 blocks, 10.0 KB: lose (server.c:9)" in running.said


def test_a_place_without_a_name_is_told_by_its_offset():
    import leaksites

    place = "libx.so+0x10 (after f(char const*))"
    assert leaksites.frames({"locations": [[0]], "functions": [[place, "", 0, "libx.so", False]]}, [0]) == [f"{place} (libx.so)"]


@pytest.mark.parametrize("force", [[], ["-f"]])
def test_a_report_to_the_standard_output_leaves_there_what_the_program_wrote(tmp_path, force):
    with open(tmp_path / "out", "wb") as out:
        words = [sys.executable, toolkit.TOOL, "run", *force, "--stats=json:/dev/stdout", "--", "echo", "the program's own"]
        subprocess.run(words, stdout=out, stderr=subprocess.PIPE, check=True)
    said = (tmp_path / "out").read_text()
    assert said.startswith("the program's own\n{") and json.loads(said[said.index("{") :])["schema"] == "quire.run/1"


def test_standard_input_that_is_a_device_is_given_to_each_run(tmp_path):
    words = [sys.executable, toolkit.TOOL, "try", "--no-report", "--once", "--time-limit", "0.2", "--", "sh", "-c", "head -c 100000 | wc -c >&2; exit 1"]
    with open("/dev/zero", "rb") as zeros:
        done = subprocess.run(words, cwd=tmp_path, stdin=zeros, capture_output=True, text=True, check=False)
    assert "100000" in done.stdout + done.stderr, done.stdout + done.stderr


@pytest.mark.parametrize("end", ["true", "kill -9 $$"], ids=["with a report", "with none"])
def test_the_peak_is_that_of_a_child_that_was_waited_for_whether_or_not_there_is_a_report(tmp_path, end):
    quire(tmp_path, "run", "--stats=json:r.json", "--", "bash", "-c", f"perl -e '$x = q(a) x 60_000_000'; {end}")
    assert json.loads((tmp_path / "r.json").read_text())["peak_rss_bytes"] > 50_000_000


def test_how_a_program_ended_is_said_once():
    assert runreport.launch.ended(-15) == "was ended by SIGTERM" and runreport.launch.ended(3) == "ended with exit status 3"
