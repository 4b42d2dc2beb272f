# SPDX-License-Identifier: Apache-2.0
banyan_perf_SOURCES = \
  %D%/banyan.c \
  %D%/data.c %D%/data.h \
  %D%/device.h \
  %D%/main.c \
  %D%/measure.c %D%/measure.h \
  %D%/merge.c %D%/merge.h \
  %D%/methods.h \
  %D%/mpi.c \
  %D%/mpi_heads.c \
  %D%/report.c %D%/report.h \
  %D%/tokens.c %D%/tokens.h
banyan_perf_CFLAGS = $(tools_cflags)
if CUDA
banyan_perf_SOURCES += \
  %D%/device.c \
  %D%/device_report.c %D%/device_report.h
banyan_perf_LDADD = libbanyan_gpu.la libbanyan_tools.la
else
banyan_perf_SOURCES += %D%/device_none.c
banyan_perf_LDADD = libbanyan_tools.la
endif
