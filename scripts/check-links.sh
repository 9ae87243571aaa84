#!/usr/bin/env bash
# Links between the repository's Markdown files lead somewhere: the file is there, and so is the heading. ROOT is another place.
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"

# shellcheck disable=SC2016 # $ is awk's here.
find . \( -name target -o -name .git \) -prune -o -name '*.md' -print0 | sort -z | xargs -0 awk '
    # As GitHub makes an anchor of a heading: small letters, digits, - and _; further ones of the same words are numbered.
    function anchor(heading,    count) {
        heading = tolower(heading)
        gsub(/\]\([^)]*\)/, "", heading)
        gsub(/[^a-z0-9 _-]/, "", heading)
        gsub(/ /, "-", heading)
        count = seen[FILENAME, heading]++
        return count ? heading "-" count : heading
    }
    # A path without . and .. in it.
    function plain(path,    parts, kept, count, i, n) {
        count = split(path, parts, "/")
        n = 0
        for (i = 1; i <= count; i++) {
            if (parts[i] == "..") { if (n > 0) n-- }
            else if (parts[i] != "." && parts[i] != "") kept[++n] = parts[i]
        }
        path = "."
        for (i = 1; i <= n; i++) path = path "/" kept[i]
        return path
    }
    FNR == 1 { fenced = 0; files[FILENAME] = 1 }
    /^ *```/ { fenced = !fenced; next }
    fenced { next }
    /^#+ / { heading = $0; sub(/^#+ +/, "", heading); sub(/ +$/, "", heading); anchors[FILENAME, anchor(heading)] = 1 }
    {
        rest = $0
        gsub(/`[^`]*`/, "", rest)
        while (match(rest, /\]\([^) ]+\)/)) {
            link = substr(rest, RSTART + 2, RLENGTH - 3)
            rest = substr(rest, RSTART + RLENGTH)
            if (link !~ /^[a-z]+:/) { where[++links] = FILENAME; line[links] = FNR; to[links] = link }
        }
    }
    END {
        for (i = 1; i <= links; i++) {
            at = index(to[i], "#")
            path = at ? substr(to[i], 1, at - 1) : to[i]
            name = at ? substr(to[i], at + 1) : ""
            folder = where[i]
            sub(/[^\/]*$/, "", folder)
            path = path == "" ? where[i] : plain(folder path)
            why = ""
            if (!(path in files) && system("test -e \"" path "\"") != 0) why = "there is no such file"
            else if (name != "" && path in files && !((path, name) in anchors)) why = "there is no such heading"
            if (why != "") { printf "error: %s:%d: %s: %s\n", where[i], line[i], to[i], why > "/dev/stderr"; bad = 1 }
        }
        exit bad
    }'
