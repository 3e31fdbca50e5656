#!/bin/sh
# Run a pytest command that must fail because its seeds are copies of each other; succeed only if it does.
set -u
echo
echo "== The trap: without reseeding all forks draw the same numbers. The run below MUST fail. =="
output=$(mktemp)
trap 'rm -f "$output"' EXIT
"$@" -rP 2>&1 | tee "$output"
if grep -q "N_eff" "$output" && grep -q "8 passed" "$output"; then
    echo "== Every single test passed, and the gate failed the group: the trap was caught. =="
    exit 0
fi
echo "== The gate did not fail the group: that is a defect. =="
exit 1
