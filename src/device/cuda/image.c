/* SPDX-License-Identifier: Apache-2.0
 * Holds the fat binary of the kernels in the library, or nothing if it was built without nvcc. */
#include "device/cuda/cuda.h"

#ifdef BNY_CUDA_IMAGE
/* The assembler includes it, because a C array would take the compiler minutes. */
__asm__(".pushsection .rodata\n"
        ".balign 64\n"
        ".global bny_cuda_image\n.hidden bny_cuda_image\n.type bny_cuda_image, @object\n"
        "bny_cuda_image:\n.incbin \"" BNY_CUDA_IMAGE "\"\n"
        "bny_cuda_image_end:\n.size bny_cuda_image, . - bny_cuda_image\n"
        ".balign 8\n"
        ".global bny_cuda_image_bytes\n.hidden bny_cuda_image_bytes\n.type bny_cuda_image_bytes, @object\n"
        "bny_cuda_image_bytes:\n.quad bny_cuda_image_end - bny_cuda_image\n.size bny_cuda_image_bytes, 8\n"
        ".popsection\n");
_Static_assert(sizeof(size_t) == 8, "the size of the image is a word of 64 bits");
#else
const unsigned char bny_cuda_image[1];
const size_t bny_cuda_image_bytes;
#endif
