#!/bin/sh
# The inside of one container: a root of its own, in which only the mounts that were asked for are to be seen, and then the job's command as the first
# process. Run by container.py in new user, mount, process and host name namespaces.
# Usage: container.sh FOLDER NAME LOG COMMAND...
# It prints "up" and then reads the mounts: a line "SOURCE TARGET" each, tab between; SOURCE - is an empty folder.
set -eu
echo up
exec >&2
root=$1/root hosts=$1/hosts ready=$1/ready name=$2 log=$3
shift 3
hostname "$name"
mount -t tmpfs -o mode=755 job "$root"
for link in bin sbin lib lib32 lib64; do
    if [ -L "/$link" ]; then ln -s "$(readlink "/$link")" "$root/$link"; fi
done
while IFS='	' read -r source target; do
    if [ "$source" = - ]; then
        mount -t tmpfs hidden "$root$target"
        continue
    fi
    if [ -d "$source" ]; then
        mkdir -p "$root$target"
    else
        mkdir -p "$(dirname "$root$target")"
        touch "$root$target"
    fi
    mount --rbind "$source" "$root$target"
    case $target in
    # Ours as root may be the machine's: a job that installs something must not install it there.
    /usr | /opt/*) mount -o remount,bind,ro "$root$target" 2>/dev/null || echo "$target stays writable: it cannot be remounted here" >&2 ;;
    esac
done
mount --bind "$hosts" "$root/etc/hosts"
if [ -d "$root/dev/shm" ]; then mount -t tmpfs -o mode=1777 shm "$root/dev/shm"; fi
mkdir -p "$root/home/job" "$root/tmp" "$root/var/tmp" "$root/run"
chmod 1777 "$root/tmp" "$root/var/tmp"
echo ready >"$ready"
# Debian's is in /usr/sbin, which is on root's PATH only.
exec "$(PATH="$PATH:/usr/sbin:/sbin" command -v chroot)" "$root" "$@" </dev/null >>"$log" 2>&1
