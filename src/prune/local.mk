# SPDX-License-Identifier: Apache-2.0
libbanyan_core_la_SOURCES += \
  %D%/block.h \
  %D%/bounds.c \
  %D%/choose.c \
  %D%/prune.h \
  %D%/weigh.c
