# SPDX-License-Identifier: Apache-2.0
libbanyan_core_la_SOURCES += \
  %D%/clock.h \
  %D%/deadline.c %D%/deadline.h \
  %D%/file.c %D%/file.h \
  %D%/flight.c %D%/flight.h \
  %D%/float_control.c %D%/float_control.h \
  %D%/hash.h \
  %D%/interface.c %D%/interface.h \
  %D%/log.c %D%/log.h \
  %D%/names.h \
  %D%/options.c %D%/options.h \
  %D%/options.def \
  %D%/printable.h \
  %D%/process.c %D%/process.h \
  %D%/pool.c %D%/pool.h \
  %D%/quota.c %D%/quota.h \
  %D%/sized.c %D%/sized.h \
  %D%/status.c %D%/status.h \
  %D%/sysfs.c %D%/sysfs.h \
  %D%/thread.c %D%/thread.h \
  %D%/trace.c %D%/trace.h

# GPU benchmark programs link this too, because the shared library hides its names.
noinst_LTLIBRARIES += libbanyan_driver.la
libbanyan_driver_la_SOURCES = %D%/cuda_library.c %D%/cuda_library.h %D%/cuda_driver.h %D%/cuda_functions.def
libbanyan_core_la_LIBADD += libbanyan_driver.la
