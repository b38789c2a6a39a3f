// What kernels here need, for compilers of devices and of processors alike: numbers of 8 and 16
// bits in their widths, and loads and stores that other devices and the host see in order.
#pragma once
