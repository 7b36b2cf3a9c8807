#!/usr/bin/env python3
"""Builds all tests and runs their programs, two at a time.

A program waits for guests and processes more than it computes, so two use the CPUs better than
one after the other, as `cargo test` runs them. Output appears only for a program that fails.

usage: run-tests.py [--slowest N] [CARGO-OPTION...]

--slowest N also prints the N slowest tests as a table in Markdown, for CONTRIBUTING.md. libtest
reports times only with its unstable options, which RUSTC_BOOTSTRAP=1 enables in its programs.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
AT_ONCE = 2
DOC_TESTS = "doc tests"
# These take longest and begin first, so that none of them is the last. The lab's peers spin, so the
# programs beside it are those that mostly wait; the others emulate guests. Then follow those of 15 to 50
# seconds: the last programs are short, and both lanes end at about the same time.
LONG = [
    "lab suite", "iod suite", "daemon suite", "toolstack qemu_driver", "toolstack suite",
    "daemon guests", "testkit guests", "iod guests", "cli guests",
    "cli suite", "daemon daemon", "image suite", "share share", "toolstack toolstack", "blk steady",
    "nic steady", "nic suite", "image image", "iod iod", "iod guards", "testkit libvirt",
]
# With one of these options cargo builds no doc tests.
TARGETS = {"--lib", "--bin", "--bins", "--test", "--tests", "--examples"}
COUNT = re.compile(r"(\d+) (passed|failed|ignored)")
# A panic's thread, which libtest names after its test, its place and its message.
PANIC = re.compile(r"^thread '(.+)' .*panicked at (.+):\n([\s\S]*?)\n(?:stack backtrace:|note: run with|\s*---- |\s*failures:)", re.MULTILINE)
# Characters shown of each end of a message. The console of a guest is at its end.
ENDS = 600
# Languages of a documentation's code block that rustdoc compiles.
COMPILED = {"", "rust", "no_run", "should_panic", "compile_fail"}
FENCE = re.compile(r"^\s*//[/!] ?```(.*)$", re.MULTILINE)
TIMES = ["-Zunstable-options", "--format=json", "--report-time"]


def programs(options, arguments):
    """Builds the tests. Returns each program's name, command and package directory."""
    build = ["cargo", "test", *options, "--no-run", "--message-format=json-render-diagnostics"]
    built = subprocess.run(build, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if built.returncode:
        sys.exit(built.returncode)
    found = []
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["profile"]["test"]:
            package = Path(message["manifest_path"]).parent
            command = [message["executable"], *arguments]
            found.append((f"{package.name} {message['target']['name']}", command, package))
    return found


def by_length(programs):
    """Returns the programs in the order in which they begin."""
    return sorted(programs, key=lambda one: (LONG + [one[0]]).index(one[0]))


def run(program, **environment):
    """Runs a program as cargo does. Returns its name, exit code, output and seconds."""
    name, command, package = program
    environment = dict(os.environ, CARGO_MANIFEST_DIR=str(package), **environment)
    begun = time.monotonic()
    ended = subprocess.run(
        command, cwd=package, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace")
    return name, ended.returncode, ended.stdout, time.monotonic() - begun


def run_all(programs, has_times):
    """Runs the programs. Yields the result of each as it ends. An interrupt starts no further one."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        # Cargo would build packages again for it.
        environment = lambda name: {"RUSTC_BOOTSTRAP": "1"} if has_times and name != DOC_TESTS else {}
        runs = [pool.submit(run, program, **environment(program[0])) for program in programs]
        try:
            for ended in as_completed(runs):
                yield ended.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def report(name, code, output, seconds):
    """Prints one line, and the output of a program that failed. Returns the program's counts."""
    counts = count(output)
    print(f"{'FAILED' if code else 'ok':6} {seconds:6.1f} s {counts['passed']:4} tests  {name}", flush=True)
    if code:
        print(output, flush=True)
    return counts


def panics(name, output):
    """Returns a short text for each panic of a program. A log that is cut in its middle keeps its end."""
    found = []
    for thread, place, message in PANIC.findall(output):
        if len(message) > 2 * ENDS:
            message = f"{message[:ENDS]}\n[...]\n{message[-ENDS:]}"
        found.append(f"{name}: {thread} panicked at {place}:\n{message}")
    return found


def count(output):
    """Returns how many tests passed, failed and were ignored, from libtest's lines or its JSON output."""
    counts = Counter()
    for line in output.splitlines():
        if line.startswith("test result:"):
            counts.update({word: int(number) for number, word in COUNT.findall(line)})
        elif line.startswith('{ "type": "suite", "event": "') and '"passed"' in line:
            event = json.loads(line)
            counts.update({word: event[word] for word in ("passed", "failed", "ignored")})
    return counts


def times(name, output):
    """Returns the seconds, program and name of each test in libtest's JSON output."""
    events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    ended = [event for event in events if event.get("type") == "test" and "exec_time" in event]
    return [(event["exec_time"], name, event["name"]) for event in ended]


def has_doc_tests(package):
    """Returns whether a package's documentation has code that rustdoc compiles."""
    fences = (FENCE.findall(source.read_text()) for source in package.glob("src/**/*.rs"))
    return any(language.strip() in COMPILED for found in fences for language in found[::2])


def doc_tests(options, programs):
    """Returns the doc tests as a program. rustdoc would take a minute to find none in the other packages."""
    names = {name.split()[0] for name, _, package in programs if has_doc_tests(package)}
    selection = [option for name in sorted(names) for option in ("-p", name)]
    options = [option for option in options if option != "--workspace"]
    command = ["cargo", "test", "--quiet", "--doc", *(options if "-p" in options else options + selection)]
    return DOC_TESTS, command, ROOT


def main(options):
    slowest = 0
    if options[:1] == ["--slowest"]:
        slowest, options = int(options[1]), options[2:]
    options = options or ["--workspace"]
    all_programs = programs(options, TIMES if slowest else [])
    docs = [] if TARGETS & set(options) else [doc_tests(options, all_programs)]
    begun, failed, causes, tests, counts = time.monotonic(), [], [], [], Counter()
    for name, code, output, seconds in run_all(by_length(all_programs + docs), slowest > 0):
        counts += report(name, code, output, seconds)
        if code:
            failed.append(name)
            causes += panics(name, output)
        elif slowest and name != DOC_TESTS:
            tests += times(name, output)
    print(f"test result: {'FAILED' if failed else 'ok'}. {counts['passed']} passed; {counts['failed']} failed; "
          f"{counts['ignored']} ignored; {len(all_programs)} programs in {time.monotonic() - begun:.0f} s")
    if slowest:
        print("| seconds | program | test |\n|--:|---|---|")
        for seconds, name, test in sorted(tests, reverse=True)[:slowest]:
            print(f"| {seconds:.1f} | `{name}` | `{test}` |")
    print(*causes, sep="\n", end="\n" if causes else "")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
