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
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
AT_ONCE = 2
# These take longest and begin first, so that none of them is the last.
LONG = ["lab suite", "daemon guests", "testkit guests", "iod guests", "iod suite", "toolstack qemu_driver"]
# With one of these options cargo builds no doc tests.
TARGETS = {"--lib", "--bin", "--bins", "--test", "--tests", "--examples"}
TIMES = ["-Zunstable-options", "--format=json", "--report-time"]


def programs(options):
    """Builds the tests. Returns each program's name, path and package directory."""
    build = ["cargo", "test", *options, "--no-run", "--message-format=json-render-diagnostics"]
    built = subprocess.run(build, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if built.returncode:
        sys.exit(built.returncode)
    found = []
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["profile"]["test"]:
            package = Path(message["manifest_path"]).parent
            found.append((f"{package.name} {message['target']['name']}", message["executable"], package))
    return sorted(found, key=lambda one: (LONG + [one[0]]).index(one[0]))


def run(program, has_times):
    """Runs a program as cargo does. Returns its name, exit code, output and seconds."""
    name, path, package = program
    environment = dict(os.environ, CARGO_MANIFEST_DIR=str(package))
    if has_times:
        environment["RUSTC_BOOTSTRAP"] = "1"
    begun = time.monotonic()
    ended = subprocess.run(
        [path, *(TIMES if has_times else [])], cwd=package, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    return name, ended.returncode, ended.stdout, time.monotonic() - begun


def times(name, output):
    """Returns the seconds, program and name of each test in libtest's JSON output."""
    events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    ended = [event for event in events if event.get("type") == "test" and "exec_time" in event]
    return [(event["exec_time"], name, event["name"]) for event in ended]


def main(options):
    slowest = 0
    if options[:1] == ["--slowest"]:
        slowest, options = int(options[1]), options[2:]
    options = options or ["--workspace"]
    all_programs = programs(options)
    begun, failed, tests = time.monotonic(), [], []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = [pool.submit(run, program, slowest > 0) for program in all_programs]
        for done in as_completed(runs):
            name, code, output, seconds = done.result()
            print(f"{'ok' if code == 0 else 'FAILED':6} {seconds:6.1f} s  {name}", flush=True)
            if code:
                failed.append(name)
                print(output, flush=True)
            elif slowest:
                tests += times(name, output)
    if not TARGETS & set(options):
        docs = ["cargo", "test", "--quiet", *options, "--doc"]
        failed += ["doc tests"] if subprocess.run(docs, cwd=ROOT, stdout=subprocess.DEVNULL).returncode else []
    print(f"{len(all_programs)} programs in {time.monotonic() - begun:.0f} s")
    if slowest:
        print("| seconds | program | test |\n|--:|---|---|")
        for seconds, name, test in sorted(tests, reverse=True)[:slowest]:
            print(f"| {seconds:.1f} | `{name}` | `{test}` |")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
