# SPDX-License-Identifier: Apache-2.0
exampledir = $(docdir)/examples
dist_example_DATA = \
  %D%/cuda_graph.c \
  %D%/environment.c \
  %D%/valid_rows.c \
  %D%/generate.py \
  %D%/generate_transformers.py \
  %D%/kubernetes.yaml \
  %D%/mpi.c \
  %D%/ownership.c \
  %D%/prefill.c \
  %D%/smollm.py \
  %D%/sparse.py \
  %D%/threads.c \
  %D%/tiers.c
