# shellcheck shell=bash
# Part of docker/engine: installs Docker from the distribution's packages.

readonly BY_HAND="Install Docker $MIN_ENGINE or newer, with Compose $MIN_COMPOSE and buildx, by hand:
  https://docs.docker.com/engine/install/"
readonly KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg

# Sets the names of the system and its packages, and the release of the packages if it is another one.
know_system() {
    have apt-get || fail "this machine has no apt-get." "$BY_HAND"
    # shellcheck source=/dev/null
    . "$ROOT/etc/os-release"
    system="${ID^} ${VERSION_ID:-99}" codename=${VERSION_CODENAME:-}
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
    local wanted
    know_system
    wanted=("${engine_packages[@]}" docker-buildx "$compose_package")
    say "No engine answers. Installing one from the packages of ${release:+Debian }${release:-$system}" \
        "(takes a minute or two); log: $PACKAGE_LOG"
    update_packages
    add_release
    install_packages "${wanted[@]/%/${release:+/$release}}" iptables ca-certificates
    # Without systemd, a package may have started the daemon itself, and stop would not find it.
    [[ -d $ROOT/run/systemd/system ]] || service docker stop >>"$PACKAGE_LOG" 2>&1 || true
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
    update_packages
    add_release
    plan=$(apt-get install --simulate --no-install-recommends "${wanted[@]}" 2>&1) ||
        fail "apt cannot: $(grep '^E:' <<<"$plan" | head -n 1)" "$BY_HAND"
    ! grep -qE '^(Inst|Remv) (docker\.io|docker-ce|docker-cli|containerd(\.io)?|runc) ' <<<"$plan" ||
        fail "installing them would change the running engine, so nothing was installed." "$BY_HAND"
    install_packages "${wanted[@]}"
    plugins_ready || fail "Compose or buildx still do not work." "$BY_HAND"
}

# The other release has the lowest priority, so that no other package comes from it.
add_release() {
    local source=$ROOT/etc/apt/sources.list.d/shardyard-$release.sources
    local pin=$ROOT/etc/apt/preferences.d/shardyard-$release
    [[ -n $release && -z $(mirror_of "$release") ]] || return 0
    printf 'Package: *\nPin: release n=%s\nPin-Priority: 100\n' "$release" >"$pin"
    printf '%s\n' "# From Shardyard's docker/engine, for a current Docker engine" 'Types: deb' \
        "URIs: $(debian_mirror)" "Suites: $release" 'Components: main' "Signed-By: $KEYRING" >"$source"
    update_packages
    if [[ -z $(mirror_of "$release") ]]; then
        rm "$source" "$pin"
        fail_with_logs "$(debian_mirror) does not provide Debian $release." "$PACKAGE_LOG"
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
