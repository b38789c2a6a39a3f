#!/usr/bin/env bash
# What must hold on an NVMe drive with poll queues. It is overwritten. In the virtual machine:
#
#   tests/rdma-vm/rdma-vm run --nvme 512M -- tests/rdma-vm/nvme.sh STORAGE
#
# STORAGE is the test program of that name. Commands go straight to the drive; then its file system
# is where the tests of transfers have their files, so that completions are polled for.
set -euo pipefail

STORAGE=$1
DRIVE=/dev/nvme0n1

echo "== commands past the block layer"
export BRIGADE_TEST_NAMESPACE=/dev/ng0n1
"$STORAGE" --nocapture namespace:: | tee /tmp/said
grep 'by commands to the drive' /tmp/said

echo "== transfers whose completions are polled for"
mkfs.ext4 -q "$DRIVE"
mkdir -p /tmp/drive
mount "$DRIVE" /tmp/drive
TMPDIR=/tmp/drive "$STORAGE" --nocapture transfers::many transfers::what_is_written | tee /tmp/said
grep 'the device of /tmp/drive.* is polled' /tmp/said
echo "== all of it holds"
