/* gpuumd.h is C11: this file uses it as a C program does. */
#include "gpuumd/gpuumd.h"

#include <string.h>

_Static_assert(offsetof(gpuumd_wait, size) == 0, "structs begin with their size");
_Static_assert(offsetof(gpuumd_buffer_options, size) == 0, "structs begin with their size");
_Static_assert(offsetof(gpuumd_device_info, size) == 0, "structs begin with their size");
_Static_assert(offsetof(gpuumd_event, size) == 0, "structs begin with their size");

int use_from_c(const char* runtime_dir, uint32_t* devices);

int use_from_c(const char* runtime_dir, uint32_t* devices) {
  gpuumd_connect_options options;
  memset(&options, 0, sizeof(options));
  options.size = sizeof(options);
  options.runtime_dir = runtime_dir;
  gpuumd_client* client = NULL;
  gpuumd_status status = gpuumd_connect(&options, NULL, &client);
  if (status == GPUUMD_OK) status = gpuumd_device_count(client, NULL, devices);
  gpuumd_disconnect(client);
  return (int)status;
}
