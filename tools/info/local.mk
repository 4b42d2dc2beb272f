# SPDX-License-Identifier: Apache-2.0
banyan_info_SOURCES = \
  %D%/build.c \
  %D%/cuda.c %D%/cuda.h \
  %D%/devices.c \
  %D%/info_levels.c \
  %D%/live.c \
  %D%/main.c \
  %D%/options.c \
  %D%/section.h \
  %D%/transports.c
banyan_info_CPPFLAGS = $(AM_CPPFLAGS) \
  -DBUILD_COMMAND='"$(BUILD_COMMAND)"' -DBUILD_HOST='"$(host)"' -DBUILD_PACKAGES='"$(BUILD_PACKAGES)"'
banyan_info_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
banyan_info_LDADD = libbanyan_methods.la libbanyan_options.la libbanyan_topo.la libbanyan_core.la $(JANSSON_LIBS)
