# SPDX-License-Identifier: Apache-2.0
libbanyan_core_la_SOURCES += \
  %D%/moves.c \
  %D%/ownership.c %D%/ownership.h
