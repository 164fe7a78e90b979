// The one macro of the code that host and device share: such a function is compiled for the device by nvcc,
// and for the host by every other compiler. Headers with such functions include nothing that nvcc cannot
// compile.
#pragma once

#ifdef __CUDACC__
#define OUTRIDER_HD __device__
#else
#define OUTRIDER_HD
#endif
