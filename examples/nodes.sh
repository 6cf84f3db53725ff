#!/bin/sh
# Make five nodes on one machine, as root: network namespaces n0 to n4 with the addresses 10.0.0.10 to
# 10.0.0.14, whose links carry 200 Mbit/s each way and have queues of 10 ms. "sh nodes.sh down" removes them.
set -eu
for i in 0 1 2 3 4 switch; do ip netns delete n$i 2>/dev/null || true; done
if [ "${1-}" = down ]; then exit; fi
ip netns add nswitch
ip -n nswitch link add bridge type bridge
ip -n nswitch link set bridge up
shape() { tc -n $1 qdisc add dev $2 root tbf rate 200mbit burst 16kb limit 250kb; }
for i in 0 1 2 3 4; do
    ip netns add n$i
    ip -n n$i link add eth0 type veth peer name port$i netns nswitch
    ip -n nswitch link set port$i master bridge
    shape n$i eth0 && shape nswitch port$i
    ip -n nswitch link set port$i up
    ip -n n$i link set lo up
    ip -n n$i link set eth0 up
    ip -n n$i address add 10.0.0.1$i/24 dev eth0
    # connections that were silent while their worker computed do not start slowly again
    ip netns exec n$i sh -c 'echo 0 > /proc/sys/net/ipv4/tcp_slow_start_after_idle'
done
