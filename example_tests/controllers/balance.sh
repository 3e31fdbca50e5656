#!/bin/sh
# Push against the lean, in shell: the line protocol with nothing but sed. One line in, one line out.
while read -r line; do
    angle=$(echo "$line" | sed 's/.*"observation":\[[^,]*,[^,]*,\([^,]*\),.*/\1/')
    case $angle in
        -*) echo '{"action": 0}' ;;
        *) echo '{"action": 1}' ;;
    esac
done
