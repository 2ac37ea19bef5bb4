# shellcheck shell=bash
# Part of docker/engine: pulls or builds the base image of the trainer image.

pull_base() {
    local answer
    say "Pulling $BASE (up to one minute)."
    answer=$(limit 60 docker pull --quiet "$BASE" 2>&1) && return
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
    scratch=$DIR/base # not in /tmp, which is often small and in memory
    remove_scratch    # left by a killed process; we hold the lock
    bootstrap "$suite" "$scratch"
    trim "$scratch"
    list_sources "$suite" >"$scratch/etc/apt/sources.list.d/debian.sources"
    tar -C "$scratch" --numeric-owner --one-file-system -c . |
        docker import -c 'CMD ["bash"]' -c 'LABEL shardyard.base=debootstrap' - "$BASE" >/dev/null
}

get_debootstrap() {
    if ! have debootstrap || ! have gpgv || [[ ! -e $KEYRING ]]; then
        release=''
        refresh_packages
        install_packages debootstrap gpgv debian-archive-keyring
    fi
    [[ -e /usr/share/debootstrap/scripts/$1 ]] || fail "debootstrap here does not know Debian $1."
}

remove_scratch() { [[ -z $scratch ]] || rm -rf --one-file-system "$scratch"; }

# debootstrap's mounts end with the namespace, so the directory can be removed at any time.
bootstrap() {
    local proxy=''
    eval "$(apt-config shell proxy Acquire::http::Proxy)"
    http_proxy=${http_proxy:-$proxy} unshare --mount debootstrap --variant=minbase --keyring="$KEYRING" \
        "$1" "$2" "$(debian_mirror)" >>"$PACKAGE_LOG" 2>&1 </dev/null 9>&- ||
        fail_with_log "debootstrap failed." "$PACKAGE_LOG" "$(why_not "$1")"
}

why_not() {
    ! tail -n 5 "$PACKAGE_LOG" | grep -q 'unknown key' ||
        say "$system does not have the keys of Debian $1. Copy the image from another machine:" \
            "docker save $BASE | ssh HERE docker load"
}

# Like Debian's own slim images: no documentation except licences, also of future packages, and no caches.
trim() {
    local root=$1 tree
    find "$root/usr/share/doc" ! -type d ! -name copyright -delete
    find "$root/usr/share/doc" -type d -empty -delete
    for tree in info lintian locale man; do
        rm -rf "${root:?}/usr/share/$tree"
        echo "path-exclude /usr/share/$tree/*"
    done >"$root/etc/dpkg/dpkg.cfg.d/slim"
    printf '%s\n' 'path-exclude /usr/share/doc/*' 'path-include /usr/share/doc/*/copyright' \
        >>"$root/etc/dpkg/dpkg.cfg.d/slim"
    rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/{apt,ldconfig}/* "$root"/var/cache/debconf/*-old \
        "$root"/var/lib/dpkg/*-old "$root"/var/log/*.log "$root"/var/log/apt/*
    rm -f "$root"/etc/{hostname,resolv.conf} # debootstrap copies this machine's
    rm -f "$root/etc/apt/sources.list"       # it names no security updates
}

list_sources() {
    local security
    security=$(mirror_of "$codename-security")
    printf '%s\n' 'Types: deb' "URIs: $(debian_mirror)" "Suites: $1 $1-updates" 'Components: main' \
        "Signed-By: $KEYRING" '' \
        'Types: deb' "URIs: ${security:-http://deb.debian.org/debian-security}" "Suites: $1-security" \
        'Components: main' "Signed-By: $KEYRING"
}
