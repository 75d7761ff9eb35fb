#!/bin/busybox sh
# The first program of the virtual machine: finds the shared root, lays memory over it, and goes on there.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t devtmpfs dev /dev
for module in $($b cat /modules/order); do $b insmod "/modules/$module"; done
$b mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro root /lower
$b mount -t tmpfs upper /upper
$b mkdir /upper/files /upper/work
$b mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work root /new
for word in $($b cat /proc/cmdline); do
  case $word in hostless.here=*) here=${word#*=} ;; esac
done
exec $b switch_root /new /bin/bash "$here/guest/init.sh"
