# SPDX-License-Identifier: Apache-2.0
libbanyan_core_la_SOURCES += \
  %D%/comm.c %D%/comm.h \
  %D%/confirm.c \
  %D%/cores.c %D%/cores.h \
  %D%/comm_device.c \
  %D%/facts.c %D%/facts.h \
  %D%/group.c \
  %D%/comm_levels.c \
  %D%/comm_proxy.c \
  %D%/shrink.c
