/* SPDX-License-Identifier: Apache-2.0
 *
 * libsluice: messages between hosts through the node's sluiced, without copies and, once running,
 * without system calls.
 *
 *   client   one attachment to the daemon: a pool of shared memory. Any thread.
 *   channel  where one thread submits and polls. Not thread-safe: one thread at a time.
 *   socket   a logical connection. Belongs to the channel that made or accepted it.
 *   buffer   a piece of the pool: sluice_alloc() gives it, sluice_free() takes it back, a send
 * hands it over, a message brings one.
 *
 * Functions return 0 or a count, or a negative errno value; sluice_error_text() gives the sentence
 * behind the last error of the calling thread. -EAGAIN always means back-pressure: nothing was
 * done; poll, then try again.
 *
 * After fork() the child's handles are dead: every call on them returns -EOWNERDEAD; the parent is
 * unaffected.
 */
#ifndef SLUICE_SLUICE_H_
#define SLUICE_SLUICE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SLUICE_VERSION_MAJOR 0
#define SLUICE_VERSION_MINOR 1

#if defined(__GNUC__)
#define SLUICE_API __attribute__((visibility("default")))
#else
#define SLUICE_API
#endif

typedef struct sluice_client sluice_client;
typedef struct sluice_channel sluice_channel;
typedef uint64_t sluice_socket;   /* 0 is never a socket. */
typedef uint64_t sluice_listener; /* 0 is never a listener. */

/* How an operation ended. Every submitted operation ends exactly once. */
enum sluice_outcome {
  SLUICE_OK = 0, /* The peer daemon has the whole message in the receiver's pool; or: connected. */
  SLUICE_FAILED = 1, /* Certainly not delivered; or: not connected. */
  SLUICE_UNKNOWN = 2 /* The peer, its daemon or ours died before the answer came. */
};

enum sluice_event_type {
  SLUICE_EVENT_SENT = 1,    /* A send is over. */
  SLUICE_EVENT_MESSAGE = 2, /* A message came: `data`, `length`; free `data` with sluice_free(). */
  SLUICE_EVENT_CONNECTED = 3, /* A connect is over: look at `outcome`. */
  SLUICE_EVENT_ACCEPTED = 4,  /* `socket` is new, from `listener`; set its user data with
                                 sluice_set_user_data(). */
  SLUICE_EVENT_CLOSED = 5, /* `socket` is gone and so is its name; `error` says why, 0 after a plain
                              close. */
  SLUICE_EVENT_DETACHED = 6,  /* The daemon is gone. Its sockets got CLOSED, its sends UNKNOWN,
                                 before this. */
  SLUICE_EVENT_REATTACHED = 7 /* The daemon is back and the listeners with it; connect again. With
                                 an `error`, `text` says what is missing: a listener, which is
                                 tried again every second, or this whole channel, because the
                                 daemon takes fewer now: its calls go on failing with -ENOTCONN
                                 until a later REATTACHED. */
};

enum sluice_event_flags {
  SLUICE_EVENT_DEGRADED_TCP = 1 /* CONNECTED, ACCEPTED, SENT, MESSAGE: the socket's messages take
                                   TCP at present although both daemons are for RDMA. Absent again
                                   once they take RDMA. */
};

typedef struct sluice_event {
  uint32_t type;            /* enum sluice_event_type */
  uint32_t outcome;         /* enum sluice_outcome; of SENT and CONNECTED */
  int32_t error;            /* 0 or a positive errno value that says why */
  uint32_t flags;           /* enum sluice_event_flags */
  sluice_socket socket;     /* 0 where no socket is concerned */
  sluice_listener listener; /* of ACCEPTED */
  uint64_t user_data; /* SENT: the operation's. ACCEPTED: the listener's. Otherwise the socket's. */
  void *data;      /* MESSAGE: the payload, yours now (never NULL). SENT with KEEP: the start of the
                      buffer,      yours again. */
  uint64_t length; /* MESSAGE: bytes at data */
  uint64_t trace_id; /* MESSAGE: as given by the sender */
  const char *text;  /* the sentence behind `error`, until the next poll; NULL when there is none */
} sluice_event;

typedef struct sluice_options {
  size_t size;                /* sizeof(sluice_options), so that it can grow */
  const char *socket_path;    /* NULL: $SLUICE_SOCKET, or else /run/sluice/sluiced.sock */
  const char *name;           /* shown to the operator; NULL: the program's name */
  uint32_t attach_timeout_ms; /* 0: 5,000; how long sluice_attach() waits for the daemon */
} sluice_options;

/* Attaches to the node's daemon; options may be NULL. Starts one thread of its own (signals
 * blocked) that speaks to the daemon's control socket, maps new memory, and attaches again, for
 * ever, when the daemon was restarted. Errors: -ENOENT no daemon there, -EACCES not allowed,
 * -EPROTONOSUPPORT versions differ, -ETIMEDOUT, -ECONNRESET the daemon hung up or broke its
 * protocol, -ENOMEM. */
SLUICE_API int sluice_attach(const sluice_options *options, sluice_client **client);

/* Closes everything and frees the client. Channels must be closed first (-EBUSY). */
SLUICE_API int sluice_detach(sluice_client *client);

/* Opens a channel. ring_entries: a power of two in [16, 65536], 0 for 1,024; half of it bounds the
 * sends in flight, an eighth (at least 16) those of one socket. */
SLUICE_API int sluice_channel_open(sluice_client *client, uint32_t ring_entries,
                                   sluice_channel **channel);

/* Closes the channel, its listeners and its sockets. Operations in flight are forgotten. */
SLUICE_API int sluice_channel_close(sluice_channel *channel);

/* A buffer of at least `length` bytes (0 counts as 1), aligned to 64. Makes a system call only when
 * the pool must grow; then it asks the daemon and waits, once or twice, for up to 10 s each. NULL
 * with errno: ENOMEM the quota or the node's memory is used up, EINVAL longer than the largest
 * message, ENOTCONN the daemon is away, ETIMEDOUT it did not answer, EAGAIN too many threads of
 * this client wait for memory already, EPROTO the daemon broke its protocol, EIO anything else it
 * said. */
SLUICE_API void *sluice_alloc(sluice_channel *channel, size_t length);

/* Gives a buffer back: one from sluice_alloc() or from a message, on any channel of the client.
 * NULL does nothing. Received buffers go back to the daemon a few at a time, the last of them with
 * the channel's next poll or send. -EINVAL: not a buffer of this client, or free already. */
SLUICE_API int sluice_free(sluice_channel *channel, void *buffer);

/* The same from a thread that has no channel. */
SLUICE_API int sluice_client_free(sluice_client *client, void *buffer);

/* Listens on a service (1 to 65535) of this node's daemon. Waits up to 10 s for it to agree.
 * Errors: -EINVAL service 0 or no place for the listener, -EACCES not this user's, -EADDRINUSE held
 * by another client, -ENOMEM the client has all of its 1,024 listeners, -ENOENT the daemon does not
 * have this channel, -ENOTCONN the daemon is or went away, -ETIMEDOUT it did not answer. */
SLUICE_API int sluice_listen(sluice_channel *channel, uint16_t service, uint64_t user_data,
                             sluice_listener *listener);
SLUICE_API int sluice_unlisten(sluice_channel *channel, sluice_listener listener);

/* Connects to "host:service" or "host:port:service" (port: that daemon's, when it is not the
 * default; a number). IPv6 addresses stand in brackets. Returns at once with the socket's name;
 * SLUICE_EVENT_CONNECTED tells how it went; after a failed connect the name is gone. Errors:
 * -EINVAL no such address can be, -ENOTCONN the daemon is away, -ENOMEM all sockets that it allows
 * are open, -EAGAIN it has not taken the requests before this one. What the daemon finds out (an
 * unknown host, a peer that refuses or does not answer) is told by the event. */
SLUICE_API int sluice_connect(sluice_channel *channel, const char *address, uint64_t user_data,
                              sluice_socket *socket);

SLUICE_API int sluice_set_user_data(sluice_channel *channel, sluice_socket socket,
                                    uint64_t user_data);

/* Asks to close; SLUICE_EVENT_CLOSED confirms. What was sent before still goes out, and every send
 * ends first, as OK in the usual case; if the peer or the path goes away meanwhile, as UNKNOWN, or
 * as FAILED where nothing of it had left this node. Messages may still come in until CLOSED. A
 * socket closed before it was connected gets CLOSED in place of CONNECTED. */
SLUICE_API int sluice_close(sluice_channel *channel, sluice_socket socket);

enum sluice_send_flags {
  SLUICE_SEND_KEEP = 1,  /* Give the buffer back with SLUICE_EVENT_SENT instead of freeing it then.
                          */
  SLUICE_SEND_SILENT = 2 /* No SLUICE_EVENT_SENT when the outcome is OK. Cannot go with KEEP. */
};

/* Sends `length` bytes at `data`, which lies in one buffer of this client (sluice_alloc() or a
 * message). On 0 the buffer belongs to the library until SLUICE_EVENT_SENT. On any error it is
 * still the caller's. Errors: -EAGAIN full, -ENOTCONN not connected (yet), -EINVAL not a buffer of
 * this client, -EMSGSIZE longer than sluice_max_message_bytes(). The receiver may have a lower
 * limit: a message above that closes the socket, at both ends with error EMSGSIZE. */
SLUICE_API int sluice_send(sluice_channel *channel, sluice_socket socket, void *data, size_t length,
                           uint32_t flags, uint64_t user_data, uint64_t trace_id);

/* Sends a copy of any memory; for small messages (up to 40 bytes nothing but the ring is touched).
 * Above that it may wait and fail as sluice_alloc() does. */
SLUICE_API int sluice_send_copy(sluice_channel *channel, sluice_socket socket, const void *data,
                                size_t length, uint32_t flags, uint64_t user_data,
                                uint64_t trace_id);

/* Takes up to `max` events without waiting; returns how many. */
SLUICE_API int sluice_poll(sluice_channel *channel, sluice_event *events, int max);

/* The same, but waits up to timeout_ms (-1: for ever) for the first. 0: nothing came in time, a
 * signal was handled, or, after a send was refused with -EAGAIN, room came free without an event (a
 * SILENT send ended): try again. */
SLUICE_API int sluice_wait(sluice_channel *channel, sluice_event *events, int max, int timeout_ms);

/* For an event loop of one's own: the descriptor becomes readable when there may be events,
 * provided that sluice_arm() said 0 since the last poll. sluice_arm() says 1 when events are there
 * already: poll instead of sleeping. */
SLUICE_API int sluice_event_fd(sluice_channel *channel);
SLUICE_API int sluice_arm(sluice_channel *channel);

/* The largest message, and the bytes that the pool may reach. */
SLUICE_API size_t sluice_max_message_bytes(const sluice_client *client);
SLUICE_API size_t sluice_pool_quota_bytes(const sluice_client *client);

/* The sentence behind the calling thread's last error. Never NULL. */
SLUICE_API const char *sluice_error_text(void);

/* "0.1.0" */
SLUICE_API const char *sluice_version(void);

#ifdef __cplusplus
}
#endif

#endif /* SLUICE_SLUICE_H_ */
