#!/bin/bash
# slowest-tests.sh [N]: runs every test program and prints the N (10) slowest tests as a table in
# Markdown, for CONTRIBUTING.md. libtest reports times only with its unstable options.
# RUSTC_BOOTSTRAP=1 enables them while the programs run; the build is that of `make test`.
set -euo pipefail
cd "$(dirname "$0")/.."
count=${1:-10}
root=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cargo test --workspace --no-run --message-format json >"$work/programs"
python3 - "$work/programs" "$root" "$count" <<'PYTHON'
import json, os, subprocess, sys

programs, root, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
times, failed = [], []
for line in open(programs):
    message = json.loads(line)
    if message.get("reason") != "compiler-artifact" or not message.get("executable"):
        continue
    if not message["profile"]["test"]:
        continue
    package = os.path.dirname(message["manifest_path"])
    name = f'{os.path.basename(package)} {message["target"]["name"]}'
    environment = dict(os.environ, RUSTC_BOOTSTRAP="1", CARGO_MANIFEST_DIR=package)
    print(name, file=sys.stderr, flush=True)
    run = subprocess.run(
        [message["executable"], "-Zunstable-options", "--format", "json", "--report-time"],
        cwd=package, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    for event in run.stdout.splitlines():
        try:
            event = json.loads(event)
        except ValueError:
            continue
        if event.get("type") == "test" and "exec_time" in event:
            times.append((event["exec_time"], name, event["name"]))
            if event["event"] != "ok":
                failed.append(f'{name} {event["name"]}')
print("| seconds | program | test |\n|--:|---|---|")
for seconds, name, test in sorted(times, reverse=True)[:count]:
    print(f"| {seconds:.1f} | `{name}` | `{test}` |")
for name in failed:
    print("failed:", name, file=sys.stderr)
sys.exit(1 if failed else 0)
PYTHON
