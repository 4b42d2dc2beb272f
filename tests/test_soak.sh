#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Ten seconds of tests/soak: ranks on two hosts, faults, shrinking, and growing back.
here=$(cd "$(dirname "$0")" && pwd)
exec "$here/soak" --seconds 10 --quiet
