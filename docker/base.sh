# shellcheck shell=bash
# Part of docker/engine: pulls or builds the base image of the trainer image.

readonly SCRATCH=$DIR/base # not in /tmp, which is often small and in memory

pull_base() {
    local answer
    say "Pulling $BASE (up to one minute)."
    answer=$(timeout 60 docker pull --quiet "$BASE" 2>&1) && return
    answer=$(tail -n 1 <<<"${answer:-no answer}")
    say "Pull failed: ${answer##*: }"
    return 1
}

make_base() {
    local suite=${BASE##*:}
    suite=${suite%-slim}
    [[ $BASE == *:*-slim ]] || fail "$BASE cannot be pulled." "Only Debian's slim images can be built here."
    have apt-get || fail "$BASE cannot be pulled." "It can be built on Debian and Ubuntu."
    say "Building it from Debian's packages. This takes about a minute."
    know_system
    get_debootstrap "$suite"
    trap 'rm -rf --one-file-system "$SCRATCH"' EXIT
    rm -rf --one-file-system "$SCRATCH" # left by a killed process
    bootstrap "$suite"
    trim
    list_sources "$suite" >"$SCRATCH/etc/apt/sources.list.d/debian.sources"
    tar -C "$SCRATCH" --numeric-owner --one-file-system -c . |
        docker import -c 'CMD ["bash"]' -c 'LABEL shardyard.base=debootstrap' - "$BASE" >/dev/null
}

get_debootstrap() {
    if ! have debootstrap gpgv || [[ ! -e $KEYRING ]]; then
        update_packages
        install_packages debootstrap gpgv debian-archive-keyring
    fi
    [[ -e /usr/share/debootstrap/scripts/$1 ]] || fail "debootstrap here does not know Debian $1."
}

# debootstrap's mounts end with the namespace, so the directory can be removed at any time.
bootstrap() {
    local proxy=''
    eval "$(apt-config shell proxy Acquire::http::Proxy)"
    env "$MARK=$DIR" "$PART=base" http_proxy="${http_proxy:-$proxy}" \
        unshare --mount debootstrap --variant=minbase --keyring="$KEYRING" "$1" "$SCRATCH" "$(debian_mirror)" \
        >>"$PACKAGE_LOG" 2>&1 </dev/null 9>&- || fail_with_logs "debootstrap failed.$(why_not "$1")" "$PACKAGE_LOG"
}

why_not() {
    ! tail -n 5 "$PACKAGE_LOG" | grep -q 'unknown key' ||
        say " $system does not have the keys of Debian $1. Copy the image from another machine:" \
            "docker save $BASE | ssh HERE docker load"
}

# Like Debian's own slim images: no documentation except licences, also of future packages, and no caches.
trim() {
    local tree
    find "$SCRATCH/usr/share/doc" ! -type d ! -name copyright -delete
    find "$SCRATCH/usr/share/doc" -type d -empty -delete
    for tree in info lintian locale man; do
        rm -rf "${SCRATCH:?}/usr/share/$tree"
        echo "path-exclude /usr/share/$tree/*"
    done >"$SCRATCH/etc/dpkg/dpkg.cfg.d/slim"
    printf '%s\n' 'path-exclude /usr/share/doc/*' 'path-include /usr/share/doc/*/copyright' \
        >>"$SCRATCH/etc/dpkg/dpkg.cfg.d/slim"
    rm -rf "$SCRATCH"/var/lib/apt/lists/* "$SCRATCH"/var/cache/{apt,ldconfig}/* "$SCRATCH"/var/cache/debconf/*-old \
        "$SCRATCH"/var/lib/dpkg/*-old "$SCRATCH"/var/log/*.log "$SCRATCH"/var/log/apt/*
    # debootstrap copies this machine's name and name servers, and its sources name no security updates.
    rm -f "$SCRATCH"/etc/{hostname,resolv.conf,apt/sources.list}
}

list_sources() {
    local security
    security=$(mirror_of "$codename-security")
    printf '%s\n' 'Types: deb' "URIs: $(debian_mirror)" "Suites: $1 $1-updates" 'Components: main' \
        "Signed-By: $KEYRING" '' \
        'Types: deb' "URIs: ${security:-http://deb.debian.org/debian-security}" "Suites: $1-security" \
        'Components: main' "Signed-By: $KEYRING"
}
