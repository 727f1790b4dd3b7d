/*
 * gpuumd.h: client interface of the gpuumd daemon. C11 and C++.
 *
 * A client connects to the daemon, opens devices (a session each), and owns VMs, buffers, queues
 * and fences there. GPU memory is exported to other nodes of the pod as a 128-bit handle and
 * imported by it.
 *
 * Errors:   every call that can fail returns a gpuumd_status; gpuumd_last_error() has a text of the
 *           calling thread that names the missing thing.
 * Waits:    every call that may wait takes a gpuumd_wait (NULL: adaptive, the client's default
 *           timeout) and ends by its deadline. A daemon that is gone, stopped or restarted gives
 *           GPUUMD_DISCONNECTED by then.
 * Threads:  everything may be called from any thread at any time, except that a queue (with its
 *           staging objects) made with GPUUMD_QUEUE_SINGLE_THREAD belongs to one thread at a time,
 * and that nothing may use an object while or after it is destroyed. fork():   a child must connect
 * again; calls with the parent's objects give GPUUMD_WRONG_PROCESS. Structs:  those that begin with
 * `size` must have it set to their sizeof, by which the library knows the caller's version. Unknown
 * flags, and reserved fields that are not 0, are refused. Destroy:  NULL is allowed. Objects may be
 * destroyed in any order; the handle is gone whatever is returned.
 */
#ifndef GPUUMD_GPUUMD_H
#define GPUUMD_GPUUMD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GPUUMD_API __attribute__((visibility("default")))
#define GPUUMD_API_VERSION 1u

/* The library may be newer than its caller, so any number can come: C++ has to know that. */
#ifdef __cplusplus
typedef enum gpuumd_status : int {
#else
typedef enum gpuumd_status {
#endif
  GPUUMD_OK = 0,
  GPUUMD_INVALID_ARGUMENT = 1, /* the request is wrong: size 0, misaligned, unknown flag */
  GPUUMD_OUT_OF_RANGE = 2,     /* past the end of a buffer or of the address space */
  GPUUMD_EXISTS = 3,           /* the address range or name is taken */
  GPUUMD_NOT_FOUND = 4,        /* no such device, object or handle */
  GPUUMD_PERMISSION = 5,
  GPUUMD_NO_MEMORY = 6, /* host memory, descriptors or a kernel limit */
  GPUUMD_NO_SPACE = 7,  /* VRAM or address space is used up */
  GPUUMD_LIMIT = 8,     /* the caller's own limit is reached */
  GPUUMD_TIMEOUT = 9,
  GPUUMD_DISCONNECTED = 10, /* the daemon is gone, stopped or restarted, or ended the session */
  GPUUMD_DEVICE_LOST = 11,
  GPUUMD_DEVICE_ERROR = 12,
  GPUUMD_PROTOCOL = 13, /* the other side broke the protocol */
  GPUUMD_UNSUPPORTED = 14,
  GPUUMD_REVOKED = 15,       /* the exporter took the memory back */
  GPUUMD_PEER_LOST = 16,     /* the remote accelerator is gone */
  GPUUMD_REFUSED = 17,       /* the remote accelerator refused the access */
  GPUUMD_FAULT = 18,         /* the GPU touched an address without a mapping or a right */
  GPUUMD_RESET = 19,         /* the engine was reset while the work was in flight */
  GPUUMD_AGAIN = 20,         /* nothing there now, or a transient shortage */
  GPUUMD_SYSTEM = 21,        /* a system call failed; the text has its errno */
  GPUUMD_WRONG_PROCESS = 22, /* used in a forked child */
  GPUUMD_WRONG_VERSION = 23  /* library and daemon have no protocol version in common */
} gpuumd_status;

/* One or two words, never NULL; "unknown status" for a value of no status. */
GPUUMD_API const char* gpuumd_status_text(gpuumd_status status);
/* What failed last in this thread, "VRAM buffer of 3221225472 bytes: out of space". Never NULL;
 * valid until the thread's next failing call. */
GPUUMD_API const char* gpuumd_last_error(void);

typedef struct gpuumd_client gpuumd_client;
typedef struct gpuumd_device gpuumd_device;
typedef struct gpuumd_vm gpuumd_vm;
typedef struct gpuumd_buffer gpuumd_buffer;
typedef struct gpuumd_queue gpuumd_queue;
typedef struct gpuumd_fence gpuumd_fence;
typedef struct gpuumd_staging gpuumd_staging;

/* ---- waits ---- */

enum {
  GPUUMD_WAIT_ADAPTIVE = 0, /* polls about 50 us, then sleeps */
  GPUUMD_WAIT_POLL = 1,     /* never sleeps: a core, for the least latency */
  GPUUMD_WAIT_SLEEP = 2     /* sleeps at once */
};
#define GPUUMD_TIMEOUT_DEFAULT INT64_C(-1)

typedef struct gpuumd_wait {
  uint32_t size;
  uint32_t mode;
  int64_t timeout_ns; /* from the call on; 0 looks once; GPUUMD_TIMEOUT_DEFAULT */
} gpuumd_wait;

/* ---- connection ---- */

typedef struct gpuumd_connect_options {
  uint32_t size;
  uint32_t flags;             /* 0 */
  const char* runtime_dir;    /* NULL: $GPUUMD_RUNTIME_DIR, else /run/gpuumd */
  const char* name;           /* shown by `gpuctl clients`; NULL: the program's name */
  int64_t default_timeout_ns; /* 0: 5 s */
} gpuumd_connect_options;

/* NOT_FOUND: no daemon there. PERMISSION, LIMIT, WRONG_VERSION, DISCONNECTED. `options` may be
 * NULL. */
GPUUMD_API gpuumd_status gpuumd_connect(const gpuumd_connect_options* options,
                                        const gpuumd_wait* wait, gpuumd_client** client);
/* Ends every session of the client: the daemon frees what it owned. Objects are still to be
 * destroyed, which then gives DISCONNECTED. */
GPUUMD_API void gpuumd_disconnect(gpuumd_client* client);

/* JSON of what the daemon knows, for tools (docs/protocol.md). `device` or GPUUMD_ALL_DEVICES. */
enum {
  GPUUMD_QUERY_STATUS = 1,
  GPUUMD_QUERY_CLIENTS = 2,
  GPUUMD_QUERY_EXPORTS = 3,
  GPUUMD_QUERY_IMPORTS = 4,
  GPUUMD_QUERY_PEERS = 5,
  GPUUMD_QUERY_FAULTS = 6
};
#define GPUUMD_ALL_DEVICES UINT32_MAX
GPUUMD_API gpuumd_status gpuumd_query(gpuumd_client* client, uint32_t kind, uint32_t device,
                                      const gpuumd_wait* wait, char** json);
GPUUMD_API void gpuumd_free_text(char* text);

/* ---- devices ---- */

enum {
  GPUUMD_DEVICE_SIMULATED = 1, /* the device model: marked SIM in every tool */
  GPUUMD_DEVICE_FABRIC = 2,    /* can export and import over the fabric */
  GPUUMD_DEVICE_FAULTS = 4     /* can service page faults */
};
enum { GPUUMD_DEVICE_STARTING = 0, GPUUMD_DEVICE_READY = 1, GPUUMD_DEVICE_IS_LOST = 2 };

typedef struct gpuumd_device_info {
  uint32_t size;
  uint32_t index;
  uint32_t flags; /* GPUUMD_DEVICE_* */
  uint32_t state;
  uint32_t pci_id;         /* device << 16 | vendor */
  uint32_t accelerator_id; /* 0..1023; UINT32_MAX: none */
  uint64_t pod_id;
  uint32_t vpod_id; /* 0: in none */
  uint32_t max_vms; /* a session */
  uint64_t vram_bytes;
  uint64_t va_first; /* binds lie in [va_first, va_end) */
  uint64_t va_end;
  uint64_t page_sizes;      /* bit mask of leaf sizes */
  uint32_t bind_alignment;  /* of address, offset and size of a bind */
  uint32_t max_queue_slots; /* 64-byte slots of a queue's ring */
  uint64_t timestamp_hz;    /* of gpuumd_queue_timestamp(); 0: unknown */
  char name[64];            /* as the daemon was given it: "vfio-user:/run/gpusim/0.sock" */
} gpuumd_device_info;

GPUUMD_API gpuumd_status gpuumd_device_count(gpuumd_client* client, const gpuumd_wait* wait,
                                             uint32_t* count);
/* `info->size` set by the caller. */
GPUUMD_API gpuumd_status gpuumd_device_query(gpuumd_client* client, uint32_t index,
                                             const gpuumd_wait* wait, gpuumd_device_info* info);
/* Opens a session, one a connection and device (EXISTS for a second). `name` (NULL: by `index`). */
GPUUMD_API gpuumd_status gpuumd_device_open(gpuumd_client* client, const char* name, uint32_t index,
                                            const gpuumd_wait* wait, gpuumd_device** device);
/* Ends the session with everything in it. Does not wait for the end. */
GPUUMD_API void gpuumd_device_close(gpuumd_device* device);
/* As it was when the session was opened; no round trip. */
GPUUMD_API gpuumd_status gpuumd_device_get_info(gpuumd_device* device, gpuumd_device_info* info);
/* An empty round trip through the daemon's reactor. */
GPUUMD_API gpuumd_status gpuumd_device_ping(gpuumd_device* device, const gpuumd_wait* wait);

/* ---- address spaces ---- */

enum {
  GPUUMD_VM_FAULTS = 1 /* binds may be GPUUMD_BIND_ON_FAULT */
};
typedef struct gpuumd_vm_options {
  uint32_t size;
  uint32_t flags;
} gpuumd_vm_options;

GPUUMD_API gpuumd_status gpuumd_vm_create(gpuumd_device* device, const gpuumd_vm_options* options,
                                          const gpuumd_wait* wait, gpuumd_vm** vm);
GPUUMD_API gpuumd_status gpuumd_vm_destroy(gpuumd_vm* vm, const gpuumd_wait* wait);
/* `state`: OK while the VM is good, else why it is not (FAULT, DEVICE_LOST). For those who lost
 * events. */
GPUUMD_API gpuumd_status gpuumd_vm_state(gpuumd_vm* vm, const gpuumd_wait* wait,
                                         gpuumd_status* state);

/* ---- buffers ---- */

enum { GPUUMD_BUFFER_VRAM = 1, GPUUMD_BUFFER_HOST = 2, GPUUMD_BUFFER_IMPORT = 3 };
typedef struct gpuumd_buffer_options {
  uint32_t size;
  uint32_t kind;  /* GPUUMD_BUFFER_VRAM or GPUUMD_BUFFER_HOST */
  uint32_t flags; /* 0 */
  uint32_t reserved;
  uint64_t bytes; /* rounded up to 4 KiB */
  /* A power of two, 0: the device's choice. Each aligned piece of so many bytes lies aligned in one
   * piece of device memory, so that a page-table entry of that size can map it. Up to 2 MiB, above
   * UNSUPPORTED. VRAM over 4 KiB is taken at once: NO_SPACE when it is free in smaller pieces only.
   */
  uint64_t alignment;
} gpuumd_buffer_options;

typedef struct gpuumd_buffer_info {
  uint32_t size;
  uint32_t kind;
  uint64_t bytes;
  uint64_t page_bytes; /* host: pages behind it, 2 MiB or 4 KiB (docs/protocol.md) */
} gpuumd_buffer_info;

/* A new buffer reads as zero. */
GPUUMD_API gpuumd_status gpuumd_buffer_create(gpuumd_device* device,
                                              const gpuumd_buffer_options* options,
                                              const gpuumd_wait* wait, gpuumd_buffer** buffer);
/* Drops the session's reference. The memory lives on while mappings or shared descriptors hold it.
 */
GPUUMD_API gpuumd_status gpuumd_buffer_destroy(gpuumd_buffer* buffer, const gpuumd_wait* wait);
GPUUMD_API gpuumd_status gpuumd_buffer_get_info(gpuumd_buffer* buffer, gpuumd_buffer_info* info);
/* `state`: OK while the buffer is good, else why it is not (REVOKED, PEER_LOST, DEVICE_LOST). */
GPUUMD_API gpuumd_status gpuumd_buffer_state(gpuumd_buffer* buffer, const gpuumd_wait* wait,
                                             gpuumd_status* state);
/* The CPU's view of a host buffer, until it is destroyed; UNSUPPORTED for others. Not inherited by
 * fork. */
GPUUMD_API gpuumd_status gpuumd_buffer_cpu_view(gpuumd_buffer* buffer, void** data);

/* ---- binding ---- */

enum { GPUUMD_BIND_MAP = 1, GPUUMD_BIND_UNMAP = 2 };
enum {
  GPUUMD_BIND_READ = 1,
  GPUUMD_BIND_WRITE = 2,
  GPUUMD_BIND_ON_FAULT = 4 /* pages become present when the GPU touches them */
};
typedef struct gpuumd_bind_op {
  uint32_t kind;
  uint32_t flags; /* of a map: rights and ON_FAULT */
  uint64_t va;
  uint64_t bytes;
  gpuumd_buffer* buffer; /* of a map */
  uint64_t offset;       /* in the buffer */
  uint64_t
      fault_window; /* bytes made present round a faulting page; 0: 2 MiB; power of two >= 4 KiB */
} gpuumd_bind_op;
#define GPUUMD_BIND_MAX_OPS 12u

/* All or nothing, in order; done (tables written, TLBs flushed) when it returns. The range of a map
 * must be free (EXISTS); an unmap must name mapped ranges (NOT_FOUND). */
GPUUMD_API gpuumd_status gpuumd_vm_bind(gpuumd_vm* vm, const gpuumd_bind_op* ops, uint32_t count,
                                        const gpuumd_wait* wait);
GPUUMD_API gpuumd_status gpuumd_vm_map(gpuumd_vm* vm, uint64_t va, gpuumd_buffer* buffer,
                                       uint64_t offset, uint64_t bytes, uint32_t flags,
                                       const gpuumd_wait* wait);
GPUUMD_API gpuumd_status gpuumd_vm_unmap(gpuumd_vm* vm, uint64_t va, uint64_t bytes,
                                         const gpuumd_wait* wait);

/* ---- fences: 64-bit timelines ---- */

/* A fence starts at 0; point 0 is invalid; points must rise. No promise that a point is ever
 * reached. */
GPUUMD_API gpuumd_status gpuumd_fence_create(gpuumd_device* device, const gpuumd_wait* wait,
                                             gpuumd_fence** fence);
GPUUMD_API gpuumd_status gpuumd_fence_destroy(gpuumd_fence* fence, const gpuumd_wait* wait);
/* OK: reached. TIMEOUT. Otherwise the error that the work up to this point ended with (FAULT,
 * REVOKED, RESET, PEER_LOST, DEVICE_LOST, ...). */
GPUUMD_API gpuumd_status gpuumd_fence_wait(gpuumd_fence* fence, uint64_t point,
                                           const gpuumd_wait* wait);
/* Never waits. `error` (may be NULL) is the status of the first failure, and `failed_point` (may be
 * NULL) the first point that it covers; GPUUMD_OK and 0 without one. */
GPUUMD_API gpuumd_status gpuumd_fence_query(gpuumd_fence* fence, uint64_t* value,
                                            gpuumd_status* error, uint64_t* failed_point);

/* ---- queues ---- */

enum {
  GPUUMD_QUEUE_SINGLE_THREAD = 1 /* no lock: one thread at a time */
};
typedef struct gpuumd_queue_options {
  uint32_t size;
  uint32_t flags;
  uint32_t slots;    /* power of two, 16..max_queue_slots; 0: 1024 */
  uint32_t priority; /* 0 normal, 1 high */
} gpuumd_queue_options;

GPUUMD_API gpuumd_status gpuumd_queue_create(gpuumd_vm* vm, const gpuumd_queue_options* options,
                                             const gpuumd_wait* wait, gpuumd_queue** queue);
GPUUMD_API gpuumd_status gpuumd_queue_destroy(gpuumd_queue* queue, const gpuumd_wait* wait);

/* Commands run in order. They become visible to the daemon with gpuumd_queue_submit(), or when the
 * ring is full: then the call waits for room. Addresses are those of the queue's VM. */
GPUUMD_API gpuumd_status gpuumd_queue_copy(gpuumd_queue* queue, uint64_t to, uint64_t from,
                                           uint64_t bytes, const gpuumd_wait* wait);
/* `to` and `bytes` are multiples of 4. */
GPUUMD_API gpuumd_status gpuumd_queue_fill(gpuumd_queue* queue, uint64_t to, uint64_t bytes,
                                           uint32_t pattern, const gpuumd_wait* wait);
/* 4..64 bytes; `to` and `bytes` are multiples of 4. `data` is copied. */
GPUUMD_API gpuumd_status gpuumd_queue_write(gpuumd_queue* queue, uint64_t to, const void* data,
                                            uint32_t bytes, const gpuumd_wait* wait);
enum {
  GPUUMD_ATOMIC_ADD = 1,
  GPUUMD_ATOMIC_AND = 2,
  GPUUMD_ATOMIC_OR = 3,
  GPUUMD_ATOMIC_XOR = 4,
  GPUUMD_ATOMIC_SWAP = 5,
  GPUUMD_ATOMIC_COMPARE_SWAP = 6
};
/* On the 4 or 8 (`width`) naturally aligned bytes at `to`. */
GPUUMD_API gpuumd_status gpuumd_queue_atomic(gpuumd_queue* queue, uint64_t to, uint32_t operation,
                                             uint32_t width, uint64_t operand, uint64_t compare,
                                             const gpuumd_wait* wait);
/* Later commands start when `fence` has reached `point`. Occupies no engine. */
GPUUMD_API gpuumd_status gpuumd_queue_wait_fence(gpuumd_queue* queue, gpuumd_fence* fence,
                                                 uint64_t point, const gpuumd_wait* wait);
/* Raises `fence` to `point` when all earlier commands are done. */
GPUUMD_API gpuumd_status gpuumd_queue_signal(gpuumd_queue* queue, gpuumd_fence* fence,
                                             uint64_t point, const gpuumd_wait* wait);
/* Writes the device's 64-bit clock at `to` (8-byte aligned) when all earlier commands are done. */
GPUUMD_API gpuumd_status gpuumd_queue_timestamp(gpuumd_queue* queue, uint64_t to,
                                                const gpuumd_wait* wait);
GPUUMD_API gpuumd_status gpuumd_queue_submit(gpuumd_queue* queue);

/* ---- staging: copies between ordinary memory and GPU addresses ---- */

typedef struct gpuumd_staging_options {
  uint32_t size;
  uint32_t flags; /* 0 */
  uint64_t va;    /* free range of the queue's VM for the staging buffer */
  uint64_t bytes; /* of the staging buffer, a multiple of 8 KiB; 0: 4 MiB */
} gpuumd_staging_options;

/* A host buffer at `va` with a fence, used through `queue`; both halves work alternately. */
GPUUMD_API gpuumd_status gpuumd_staging_create(gpuumd_queue* queue,
                                               const gpuumd_staging_options* options,
                                               const gpuumd_wait* wait, gpuumd_staging** staging);
GPUUMD_API gpuumd_status gpuumd_staging_destroy(gpuumd_staging* staging, const gpuumd_wait* wait);
/* Returns when the data is at `to` (upload: a GPU address; download: memory of the caller). */
GPUUMD_API gpuumd_status gpuumd_staging_upload(gpuumd_staging* staging, uint64_t to,
                                               const void* from, uint64_t bytes,
                                               const gpuumd_wait* wait);
GPUUMD_API gpuumd_status gpuumd_staging_download(gpuumd_staging* staging, void* to, uint64_t from,
                                                 uint64_t bytes, const gpuumd_wait* wait);

/* ---- export, import, sharing ---- */

/* Names exported memory throughout the pod. Bits 9:0 of `lo` are the exporter's accelerator id. */
typedef struct gpuumd_handle {
  uint64_t lo;
  uint64_t hi;
} gpuumd_handle;

#define GPUUMD_HANDLE_TEXT_BYTES 33u /* 32 hexadecimal digits and the final 0 */
GPUUMD_API void gpuumd_handle_format(const gpuumd_handle* handle,
                                     char text[GPUUMD_HANDLE_TEXT_BYTES]);
/* INVALID_ARGUMENT unless `text` is exactly 32 hexadecimal digits. */
GPUUMD_API gpuumd_status gpuumd_handle_parse(const char* text, gpuumd_handle* handle);

/* A buffer has one handle however often it is exported; it lasts as long as the buffer or until
 * revoked. */
GPUUMD_API gpuumd_status gpuumd_export(gpuumd_buffer* buffer, const gpuumd_wait* wait,
                                       gpuumd_handle* handle);
/* Takes the memory back from every importer; returns when none can reach it. The buffer stays. */
GPUUMD_API gpuumd_status gpuumd_revoke(gpuumd_buffer* buffer, const gpuumd_wait* wait);
/* NOT_FOUND: nobody exports this handle. PEER_LOST, TIMEOUT, REFUSED. The same handle gives a
 * buffer of the same id, and each is destroyed by itself; the last one gives the memory back. So it
 * is with a descriptor that is opened again. */
GPUUMD_API gpuumd_status gpuumd_import(gpuumd_device* device, const gpuumd_handle* handle,
                                       const gpuumd_wait* wait, gpuumd_buffer** buffer);
/* A descriptor that holds a reference to the buffer and can be passed to another local process. */
GPUUMD_API gpuumd_status gpuumd_buffer_share(gpuumd_buffer* buffer, const gpuumd_wait* wait,
                                             int* descriptor);
/* The buffer behind such a descriptor, which stays the caller's and may be closed afterwards. */
GPUUMD_API gpuumd_status gpuumd_buffer_open_shared(gpuumd_device* device, int descriptor,
                                                   const gpuumd_wait* wait, gpuumd_buffer** buffer);

/* ---- events ---- */

enum {
  GPUUMD_EVENT_REVOKED = 1,     /* object: import buffer */
  GPUUMD_EVENT_FATAL_FAULT = 2, /* object: VM; va, access, reason */
  GPUUMD_EVENT_DEVICE_LOST = 3,
  GPUUMD_EVENT_PEER_DOWN = 4, /* object: accelerator id */
  GPUUMD_EVENT_PEER_UP = 5,   /* object: accelerator id */
  GPUUMD_EVENT_RESET = 6      /* object: queue */
};
enum { GPUUMD_ACCESS_READ = 1, GPUUMD_ACCESS_WRITE = 2, GPUUMD_ACCESS_ATOMIC = 3 };
typedef struct gpuumd_event {
  uint32_t size;
  uint32_t kind;
  uint32_t device; /* index */
  uint32_t count;  /* events merged into this one, at least 1 */
  uint64_t object; /* gpuumd_*_id() of the object, or as said above */
  uint64_t va;
  uint32_t access;
  uint32_t reason;  /* gpuumd_status */
  uint64_t time_ns; /* CLOCK_MONOTONIC of the daemon */
  uint64_t lost;    /* events of this device dropped so far */
} gpuumd_event;

/* Readable while events may be there, or the daemon is gone. The client's: do not read or close it.
 */
GPUUMD_API gpuumd_status gpuumd_event_fd(gpuumd_client* client, int* descriptor);
/* The next event of any device of this client; AGAIN without one; DISCONNECTED. Never waits. */
GPUUMD_API gpuumd_status gpuumd_event_next(gpuumd_client* client, gpuumd_event* event);

GPUUMD_API uint64_t gpuumd_vm_id(const gpuumd_vm* vm);
GPUUMD_API uint64_t gpuumd_buffer_id(const gpuumd_buffer* buffer);
GPUUMD_API uint64_t gpuumd_queue_id(const gpuumd_queue* queue);
GPUUMD_API uint64_t gpuumd_fence_id(const gpuumd_fence* fence);

#ifdef __cplusplus
}
#endif
#endif
