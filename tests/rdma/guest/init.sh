# What the virtual machine does once it has its root: devices, the command, power off.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev 2>/dev/null
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
for folder in /dev/shm /run; do mount -t tmpfs tmpfs $folder; done
for word in $(cat /proc/cmdline); do
  case $word in
    hostless.modules=*) modules=${word#*=} ;;
    hostless.exchange=*) exchange=${word#*=} ;;
  esac
done
mkdir -p "$exchange" /lib/modules
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000 exchange "$exchange"

finish() {
  echo "$1" >"$exchange/exit-code"
  sync
  exec busybox poweroff -f
}

# Two ports of one cable. This machine owns both addresses, and would short-cut between them; so what leaves for the other
# end is routed by the cable before the local table is asked, and netem on a port hurts what leaves it.
cable() {
  ip link add cable0 type veth peer name cable1 || return
  for port in 0 1; do
    other=$((1 - port))
    ip link set cable$port address 02:00:00:00:77:0$port
    ip addr add 10.77.0.$((port + 1))/32 dev cable$port
    ip link set cable$port up
    echo 1 >/proc/sys/net/ipv4/conf/cable$port/accept_local
    echo 0 >/proc/sys/net/ipv4/conf/cable$port/rp_filter
    ip rule add pref 1 iif cable$port lookup local
    ip route add 10.77.0.$((other + 1))/32 dev cable$port src 10.77.0.$((port + 1)) table 77
    ip neigh add 10.77.0.$((other + 1)) lladdr 02:00:00:00:77:0$other dev cable$port nud permanent
  done
  echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
  echo 20000 >/proc/sys/net/core/netdev_max_backlog  # packets of a read of a few MB come all at once
  ip rule add pref 10 lookup 77
  ip rule add pref 20 lookup local
  ip rule del pref 0
  for port in 0 1; do rdma link add rxe$port type rxe netdev cable$port || return; done
}

hostname hostless-rdma
ip link set lo up
ln -sfn "$modules/modules/$(uname -r)" /lib/modules/
for module in rdma_rxe rdma_ucm ib_uverbs veth sch_netem; do
  modprobe $module || { echo "vm: no module $module"; finish 1; }
done
cable || { echo "vm: no RDMA devices"; finish 1; }
ulimit -l unlimited
export TMPDIR=/run/tmp  # in memory: the root's layers have no O_TMPFILE, which regions need
mkdir $TMPDIR
echo "vm: up after $(cut -d' ' -f1 /proc/uptime) s"
(. "$exchange/command") </dev/null
code=$?
echo "vm: command ended with $code after $(cut -d' ' -f1 /proc/uptime) s"
finish $code
