# SPDX-License-Identifier: Apache-2.0
libbanyan_core_la_SOURCES += \
  %D%/bind.c \
  %D%/notice.c %D%/notice.h \
  %D%/exec.c %D%/exec.h \
  %D%/failure.c \
  %D%/payload.c %D%/payload.h \
  %D%/valid.c \
  %D%/record.c %D%/record.h \
  %D%/run.c %D%/run.h \
  %D%/wait.c %D%/wait.h
