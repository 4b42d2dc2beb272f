# SPDX-License-Identifier: Apache-2.0
banyan_decode_SOURCES = \
  %D%/allreduce3.c \
  %D%/device.h \
  %D%/fused.c \
  %D%/kernel.c %D%/kernel.h \
  %D%/main.c \
  %D%/measure.c %D%/measure.h \
  %D%/methods.c %D%/methods.h \
  %D%/problem.c %D%/problem.h \
  %D%/readers.c %D%/readers.h \
  %D%/reference.c %D%/reference.h \
  %D%/report.c %D%/report.h \
  %D%/ring.c \
  %D%/torch.c %D%/torch.h
banyan_decode_CFLAGS = $(tools_cflags)
if CUDA
banyan_decode_SOURCES += \
  %D%/device.c \
  %D%/device_cache.c %D%/device_cache.h \
  %D%/device_report.c %D%/device_report.h
banyan_decode_LDADD = libbanyan_gpu.la libbanyan_tools.la
else
banyan_decode_SOURCES += %D%/device_none.c
banyan_decode_LDADD = libbanyan_tools.la
endif
