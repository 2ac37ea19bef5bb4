# shellcheck shell=bash
# What docker/engine and slurm/cluster do alike: install packages, and start, find and end daemons.
# The script that reads this file sets SCRIPT, its name; DIR, the directory of its logs; and MARK, the variable that
# has the value $DIR in the environment of its daemons. Their variable $PART has the name of the daemon.

readonly PART=${MARK%_CLUSTER}_PART PACKAGE_LOG=$DIR/packages.log
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin # an ordinary user's PATH lacks them

# Calls the function that the arguments of the script name. The comment at its top is its help.
main() {
    command=${*:-up}
    case $command in
        up | stop | status) $command ;;
        -h | --help) sed -n '2,/^[^#]/ s/^# \{0,1\}//p' "$0" ;;
        *) fail "unknown argument $command. See $SCRIPT --help" ;;
    esac
}

say() { printf '%s\n' "$@"; }

fail() {
    say "$SCRIPT: $1" "${@:2}" >&2
    exit 1
}

# fail_with_logs MESSAGE LOG...: shows the last errors in each log, or its last lines.
fail_with_logs() {
    local log lines shown=()
    for log in "${@:2}"; do
        lines=$(grep -iE '^E:|error|fatal|failed' "$log" || cat "$log") 2>/dev/null || continue
        mapfile -t -O "${#shown[@]}" shown < <(tail -n 3 <<<"$lines" | cut -c 1-240 | sed "s|^|  ${log##*/}: |")
    done
    fail "$1 Logs: $DIR" "${shown[@]}"
}

have() {
    local name
    for name; do command -v "$name" >/dev/null || return 1; done
}

wait_until() { # SECONDS COMMAND...
    local end=$((SECONDS + $1))
    until "${@:2}"; do
        ((SECONDS < end)) || return 1
        sleep 0.2
    done
}

# Lets one process at a time change what DIR has. The lock is on the parent of DIR, because stop removes DIR.
in_turn() {
    { mkdir -p "$(dirname "$DIR")" && exec 9<"$(dirname "$DIR")"; } 2>/dev/null || fail "cannot write to $DIR"
    flock --nonblock 9 || { say "Another process starts or stops daemons in $(dirname "$DIR"): waiting." && flock 9; }
}

# --- packages ------------------------------------------------------------------------------------------

# Errors of unrelated package sources do not matter if the packages can be installed. The first update of a new machine
# may hold the lock.
update_packages() { wait_until 60 updated || true; }

updated() { apt_get update || ! tail -n 3 "$PACKAGE_LOG" | grep -q 'Could not get lock'; }

install_packages() {
    apt_get install --no-install-recommends --no-remove "$@" ||
        fail_with_logs "apt could not install $*." "$PACKAGE_LOG"
}

apt_get() {
    local sudo=()
    (($(id -u) == 0)) || sudo=(sudo)
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 \
        apt-get -y -o DPkg::Lock::Timeout=120 -o Dpkg::Options::=--force-confold \
        -o Acquire::Retries=1 -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20 "$@" \
        >>"$PACKAGE_LOG" 2>&1 </dev/null 9>&-
}

# --- daemons -------------------------------------------------------------------------------------------

# launch NAME COMMAND...: starts a daemon, whose log is $DIR/NAME.log. It outlives this script and its terminal. It must
# not inherit descriptors: a caller may wait for the end of our output, and the lock would stay. It drops the lock when
# it is marked, so stop finds it even if this script is killed. It heeds Ctrl-C also if this script runs in background.
launch() {
    # shellcheck disable=SC2016
    (
        cd "$DIR"
        exec env --default-signal "$MARK=$DIR" "$PART=$1" setsid --fork bash -c '
            for fd in /proc/$$/fd/*; do
                fd=${fd##*/}
                ((fd <= 2)) || exec {fd}>&-
            done
            exec "$@"' bash "${@:2}"
    ) </dev/null >>"$DIR/$1.log" 2>&1
}

# processes [NAME [COMMAND]]: the PIDs of the daemons and of what they have started; those of one daemon; those of
# one daemon that execute a command.
processes() {
    local pid
    for pid in $(having "$MARK=$DIR"); do
        [[ -z ${1:-} ]] || grep -qzxF "$PART=$1" "/proc/$pid/environ" 2>/dev/null || continue
        [[ -z ${2:-} || $(cat "/proc/$pid/comm" 2>/dev/null) == "$2" ]] || continue
        echo "$pid"
    done
}

# having VARIABLE=VALUE: the PIDs of processes with this environment variable. That of a zombie is empty.
having() { grep -lzxF "$1" /proc/[0-9]*/environ 2>/dev/null | cut -d / -f 3; }

ended() { [[ -z $(processes "$@") ]]; }

# end SIGNAL [NAME]: ends the daemons, or one of them, and what they have started.
end() {
    # shellcheck disable=SC2046
    kill -s "$1" $(processes "${@:2}") 2>/dev/null || true
    wait_until 60 ended "${@:2}" || fail "these processes do not end: $(processes "${@:2}" | xargs)"
}
