# SPDX-License-Identifier: Apache-2.0
libbanyan_core_la_SOURCES += \
  %D%/clock.h \
  %D%/file.c %D%/file.h \
  %D%/hash.h \
  %D%/interface.c %D%/interface.h \
  %D%/log.c %D%/log.h \
  %D%/names.h \
  %D%/options.c %D%/options.h \
  %D%/options.def \
  %D%/sized.c %D%/sized.h \
  %D%/status.c %D%/status.h \
  %D%/trace.c %D%/trace.h
