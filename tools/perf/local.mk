# SPDX-License-Identifier: Apache-2.0
banyan_perf_SOURCES = \
  %D%/banyan.c \
  %D%/data.c %D%/perf.h \
  %D%/main.c \
  %D%/measure.c \
  %D%/merge.c \
  %D%/mpi.c \
  %D%/report.c
banyan_perf_CFLAGS = $(tools_cflags)
if CUDA
banyan_perf_SOURCES += %D%/device_combine.c
banyan_perf_LDADD = libbanyan_gpu.la libbanyan_tools.la
else
banyan_perf_SOURCES += %D%/device_none.c
banyan_perf_LDADD = libbanyan_tools.la
endif
