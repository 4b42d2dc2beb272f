# SPDX-License-Identifier: Apache-2.0
libbanyan_core_la_SOURCES += \
  %D%/comm.c %D%/comm.h \
  %D%/confirm.c \
  %D%/cores.c %D%/cores.h \
  %D%/device.c \
  %D%/facts.c %D%/facts.h \
  %D%/group.c \
  %D%/levels.c \
  %D%/proxy.c \
  %D%/shrink.c
