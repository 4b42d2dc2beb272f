# SPDX-License-Identifier: Apache-2.0
include_HEADERS = %D%/banyan.h %D%/banyan_attention.h %D%/banyan_ownership.h
