# SPDX-License-Identifier: Apache-2.0
banyan_decode_SOURCES = \
  %D%/allreduce3.c \
  %D%/decode.h \
  %D%/fused.c \
  %D%/kernel.c \
  %D%/main.c \
  %D%/measure.c \
  %D%/methods.c \
  %D%/problem.c \
  %D%/reference.c \
  %D%/report.c \
  %D%/ring.c
banyan_decode_CFLAGS = $(tools_cflags)
if CUDA
banyan_decode_SOURCES += \
  %D%/device_decode.c \
  %D%/device_cache.c
banyan_decode_LDADD = libbanyan_gpu.la libbanyan_tools.la
else
banyan_decode_SOURCES += %D%/device_none.c
banyan_decode_LDADD = libbanyan_tools.la
endif
