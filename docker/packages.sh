# shellcheck shell=bash
# Part of docker/engine: installs Docker from the distribution's packages.

readonly BY_HAND="Install Docker $MIN_ENGINE or newer, with Compose and buildx, by hand:
  https://docs.docker.com/engine/install/"
readonly PLUGINS_BY_HAND="Install Compose $MIN_COMPOSE or newer, and buildx, by hand:
  https://docs.docker.com/compose/install/linux/"
readonly KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg

# Sets the names of the system and its packages, and the release of the packages if it is another one.
know_system() {
    have apt-get || fail "this machine has no apt-get." "$BY_HAND"
    # shellcheck source=/dev/null
    system=$(. "$ETC/os-release" && echo "${ID^} ${VERSION_ID:-99}")
    # shellcheck source=/dev/null
    codename=$(. "$ETC/os-release" && echo "${VERSION_CODENAME:-}")
    engine_packages=(docker.io docker-cli) compose_package=docker-compose release=''
    case $system in
        "Debian 12") release=trixie ;; # its own engine is 20.10, without Compose v2
        "Debian "*) at_least 13 "${system#* }" || fail "$system is too old." "$BY_HAND" ;;
        "Ubuntu "*)
            at_least 22.04 "${system#* }" || fail "$system is too old." "$BY_HAND"
            engine_packages=(docker.io) compose_package=docker-compose-v2
            ;;
        *) fail "this script supports Debian and Ubuntu, not $system." "$BY_HAND" ;;
    esac
}

install_engine() {
    local wanted version
    if have docker && have dockerd; then
        version=$(dockerd --version | grep -oE '[0-9][^, ]*' | head -n 1)
        ! at_least $MIN_ENGINE "$version" || return 0
    fi
    know_system
    wanted=("${engine_packages[@]}" docker-buildx "$compose_package")
    say "No engine answers. Installing one from the packages of ${release:+Debian }${release:-$system}" \
        "(takes a minute or two); log: $PACKAGE_LOG"
    refresh_packages
    install_packages "${wanted[@]/%/${release:+/$release}}" iptables ca-certificates
    installed=true
}

# The engine is in use, so its own packages must not change.
install_plugins() {
    local wanted=() plan buildx_package=docker-buildx
    know_system
    if dpkg -s docker-ce-cli >/dev/null 2>&1; then # Docker's own packages need Docker's own plugins
        release='' buildx_package=docker-buildx-plugin compose_package=docker-compose-plugin
    fi
    buildx_ready || wanted+=("$buildx_package${release:+/$release}")
    compose_ready || wanted+=("$compose_package${release:+/$release}")
    say "Engine $engine is not changed. Installing ${wanted[*]}"
    refresh_packages
    plan=$(apt-get install --simulate --no-install-recommends "${wanted[@]}" 2>&1) ||
        fail "apt cannot: $(grep '^E:' <<<"$plan" | head -n 1)" "$PLUGINS_BY_HAND"
    ! grep -qE '^(Inst|Remv) (docker\.io|docker-ce|docker-cli|containerd(\.io)?|runc) ' <<<"$plan" ||
        fail "installing them would change the running engine, so nothing was installed." "$PLUGINS_BY_HAND"
    install_packages "${wanted[@]}"
    plugins_ready || fail "Compose or buildx still do not work." "$PLUGINS_BY_HAND"
}

# Errors of unrelated package sources do not matter if the packages can be installed.
refresh_packages() {
    for _ in 1 2 3 4 5 6; do
        ! apt_get update || break
        tail -n 3 "$PACKAGE_LOG" | grep -q 'Could not get lock' || break # held by a new machine's first update
        sleep 10
    done
    [[ -z $release || -n $(mirror_of "$release") ]] || add_release
}

# Has the lowest priority, so that no other package comes from this release.
add_release() {
    local source=$ETC/apt/sources.list.d/shardyard-$release.sources
    local pin=$ETC/apt/preferences.d/shardyard-$release mirror
    mirror=$(debian_mirror)
    printf 'Package: *\nPin: release n=%s\nPin-Priority: 100\n' "$release" >"$pin"
    printf '%s\n' "# From Shardyard's docker/engine, for a current Docker engine" 'Types: deb' \
        "URIs: $mirror" "Suites: $release" 'Components: main' "Signed-By: $KEYRING" >"$source"
    if ! apt_get update -o Dir::Etc::sourcelist="$source" -o Dir::Etc::sourceparts=- \
        -o APT::Get::List-Cleanup=0 || [[ -z $(mirror_of "$release") ]]; then
        rm -f "$source" "$pin"
        fail_with_log "$mirror does not provide Debian $release." "$PACKAGE_LOG"
    fi
}

# Prints the URL of a release's mirror, or nothing. apt parses its sources itself, in either format; the origin
# excludes derivatives that use the same release names.
mirror_of() {
    # shellcheck disable=SC2016
    apt-get indextargets --format '$(ORIGIN) $(RELEASE) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
        awk -v release="$1" '$1 == "Debian" && $2 == release && $3 ~ /^http/ && !uri { uri = $3 }
            END { sub("/$", "", uri); print uri }'
}

debian_mirror() {
    local mirror
    mirror=$(mirror_of "$codename")
    echo "${mirror:-http://deb.debian.org/debian}"
}

install_packages() {
    apt_get install --no-install-recommends --no-remove "$@" ||
        fail_with_log "apt could not install $*" "$PACKAGE_LOG"
}

apt_get() {
    DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 \
        apt-get -y -o DPkg::Lock::Timeout=120 -o Dpkg::Options::=--force-confold \
        -o Acquire::Retries=1 -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20 "$@" \
        >>"$PACKAGE_LOG" 2>&1 </dev/null 9>&-
}
