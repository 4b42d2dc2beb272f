# SPDX-License-Identifier: Apache-2.0
# Proves and costs plans of all ranks together. Tests and banyan-plan use it; the library does not contain it.
noinst_LTLIBRARIES += libbanyan_prove.la
libbanyan_prove_la_SOURCES = \
  %D%/arrival.c %D%/arrival.h \
  %D%/check.c %D%/check.h \
  %D%/cost.c \
  %D%/delivery.c %D%/delivery.h \
  %D%/expression.c %D%/expression.h \
  %D%/prove.c %D%/prove.h
