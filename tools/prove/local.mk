# SPDX-License-Identifier: Apache-2.0
# Proves the plans of all ranks. Tests and banyan-plan use it; the library does not contain it.
noinst_LTLIBRARIES += libbanyan_prove.la
libbanyan_prove_la_SOURCES = \
  %D%/arrival.c %D%/prove.h \
  %D%/check.c \
  %D%/delivery.c \
  %D%/expression.c \
  %D%/prove.c
libbanyan_prove_la_LIBADD = libbanyan_launch.la
