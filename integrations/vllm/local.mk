# SPDX-License-Identifier: Apache-2.0
# Decode context parallelism on CPUs for vLLM, as a separate Python distribution. Its test needs 6 GB of packages.
EXTRA_DIST += \
  %D%/Containerfile \
  %D%/README.md \
  %D%/constraints.txt \
  %D%/leaderworkerset.yaml \
  %D%/pyproject.toml \
  %D%/banyan_vllm/__init__.py \
  %D%/banyan_vllm/attention.py \
  %D%/banyan_vllm/command.py \
  %D%/banyan_vllm/gpt_oss.py \
  %D%/banyan_vllm/mla.py \
  %D%/banyan_vllm/nodes.py \
  %D%/banyan_vllm/ranks.py \
  %D%/banyan_vllm/sums.py \
  %D%/test/bench.py \
  %D%/test/check.py \
  %D%/test/models.py \
  %D%/test/run \
  %D%/test/server.py
