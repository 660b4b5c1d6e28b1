/*
 * A library of the GPU driver that has no function on a simulated node. It can be loaded and holds
 * nothing but its name; the Makefile builds one for each SONAME that a real node has.
 */
__attribute__((visibility("default"))) const char simulated_driver_library[] = SONAME;
