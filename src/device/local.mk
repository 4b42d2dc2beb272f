# SPDX-License-Identifier: Apache-2.0
libbanyan_core_la_SOURCES += \
  %D%/arena.c %D%/arena.h \
  %D%/decode.c %D%/decode.h \
  %D%/decode_plan.c %D%/decode_plan.h \
  %D%/device.c %D%/device.h \
  %D%/engine.c %D%/engine.h \
  %D%/program.c %D%/program.h \
  %D%/proxy.c %D%/proxy.h \
  %D%/run.c %D%/run.h \
  %D%/unit.c

# The CUDA driver is loaded at run time. Only headers of the toolkit are used.
if CUDA
noinst_LTLIBRARIES += libbanyan_cuda.la
libbanyan_core_la_LIBADD += libbanyan_cuda.la
endif
libbanyan_cuda_la_SOURCES = \
  %D%/cuda/cuda.c %D%/cuda/cuda.h \
  %D%/cuda/driver.c %D%/cuda/driver.h \
  %D%/cuda/entry.h \
  %D%/cuda/image.c \
  %D%/cuda/kernel.c \
  %D%/cuda/memory.c


libbanyan_cuda_la_CPPFLAGS = $(AM_CPPFLAGS)
libbanyan_cuda_la_CFLAGS = $(AM_CFLAGS) $(CUDA_CFLAGS)

# The library contains the kernels of all architectures as one file.
if NVCC_IMAGE
cuda_image_flags = -DBNY_CUDA_IMAGE='"kernels.fatbin"' -DBNY_CUDA_KERNELS='"$(CUDA_KERNELS)"'
libbanyan_cuda_la_CPPFLAGS += $(cuda_image_flags)
# A variable names the object, or automake would take this rule for its compile rule.
cuda_image_object = %D%/cuda/libbanyan_cuda_la-image.lo
$(cuda_image_object): kernels.fatbin
endif
