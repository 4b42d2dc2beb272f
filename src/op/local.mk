# SPDX-License-Identifier: Apache-2.0
libbanyan_core_la_SOURCES += \
  %D%/attend.c %D%/attend.h \
  %D%/cache.c \
  %D%/chosen.c \
  %D%/valid.c %D%/valid.h \
  %D%/make.c \
  %D%/operation.h \
  %D%/overlap.c \
  %D%/pass.c %D%/pass.h \
  %D%/pass_choose.c \
  %D%/query.c \
  %D%/run.c \
  %D%/split.c \
  %D%/within.c
