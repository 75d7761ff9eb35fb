// The bare loop that bench/fabric.py compares with: posts lists of one-sided operations between two queue pairs of
// this process, on two devices, and waits for each list's one completion. Prints lists completed a second.
//   loop DEVICE GID_INDEX PEER_DEVICE PEER_GID_INDEX write|read|swap BYTES LIST SECONDS
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct end {
  struct ibv_context *context;
  struct ibv_pd *pd;
  struct ibv_cq *cq;
  struct ibv_qp *qp;
  struct ibv_mr *mr;
  union ibv_gid gid;
  int gid_index;
  char *memory;
};

static void *need(void *thing, const char *what) {
  if (thing == NULL) {
    perror(what);
    exit(1);
  }
  return thing;
}

static void must(int failed, const char *what) {
  if (failed) {
    fprintf(stderr, "%s failed\n", what);
    exit(1);
  }
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec / 1e9;
}

static void open_end(struct end *end, const char *name, int gid_index, size_t bytes, int depth) {
  int count;
  struct ibv_device **devices = need(ibv_get_device_list(&count), "devices");
  for (int i = 0; i < count; ++i)
    if (strcmp(ibv_get_device_name(devices[i]), name) == 0) end->context = ibv_open_device(devices[i]);
  need(end->context, name);
  ibv_free_device_list(devices);
  end->pd = need(ibv_alloc_pd(end->context), "protection domain");
  end->cq = need(ibv_create_cq(end->context, depth + 1, NULL, NULL, 0), "completion queue");
  must(posix_memalign((void **)&end->memory, 4096, bytes), "memory");
  memset(end->memory, 0, bytes);
  int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  end->mr = need(ibv_reg_mr(end->pd, end->memory, bytes, access), "registration");
  end->gid_index = gid_index;
  must(ibv_query_gid(end->context, 1, gid_index, &end->gid), "GID");
  struct ibv_qp_init_attr made = {.send_cq = end->cq, .recv_cq = end->cq, .qp_type = IBV_QPT_RC};
  made.cap.max_send_wr = depth, made.cap.max_recv_wr = 1, made.cap.max_send_sge = 1, made.cap.max_recv_sge = 1;
  made.cap.max_inline_data = 64;
  end->qp = need(ibv_create_qp(end->pd, &made), "queue pair");
}

static void connect_end(struct end *end, struct end *other) {
  struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1};
  a.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  must(ibv_modify_qp(end->qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
  struct ibv_port_attr port;
  must(ibv_query_port(end->context, 1, &port), "port");
  a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = port.active_mtu, .dest_qp_num = other->qp->qp_num};
  a.max_dest_rd_atomic = 16, a.min_rnr_timer = 12;
  a.ah_attr.is_global = 1, a.ah_attr.port_num = 1, a.ah_attr.grh.dgid = other->gid;
  a.ah_attr.grh.sgid_index = end->gid_index, a.ah_attr.grh.hop_limit = 64;
  int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  must(ibv_modify_qp(end->qp, &a, mask | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
  a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 16};
  mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN;
  must(ibv_modify_qp(end->qp, &a, mask | IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
}

int main(int argc, char **argv) {
  must(argc != 9, "usage: loop DEVICE GID_INDEX PEER_DEVICE PEER_GID_INDEX write|read|swap BYTES LIST SECONDS");
  const char *kind = argv[5];
  size_t bytes = strtoul(argv[6], NULL, 10);
  int list = atoi(argv[7]);
  double seconds = atof(argv[8]);
  struct end near = {0}, far = {0};
  open_end(&near, argv[1], atoi(argv[2]), bytes * list, list);
  open_end(&far, argv[3], atoi(argv[4]), bytes * list, list);
  connect_end(&near, &far), connect_end(&far, &near);
  struct ibv_send_wr *requests = need(calloc(list, sizeof *requests), "requests"), *bad;
  struct ibv_sge *pieces = need(calloc(list, sizeof *pieces), "pieces");
  for (int i = 0; i < list; ++i) {
    pieces[i] = (struct ibv_sge){(uintptr_t)near.memory + i * bytes, bytes, near.mr->lkey};
    struct ibv_send_wr *r = &requests[i];
    r->sg_list = &pieces[i], r->num_sge = 1, r->next = i + 1 < list ? r + 1 : NULL;
    r->send_flags = i + 1 < list ? 0 : IBV_SEND_SIGNALED;
    uint64_t remote = (uintptr_t)far.memory + i * bytes;
    if (strcmp(kind, "swap") == 0) {
      r->opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
      r->wr.atomic.remote_addr = remote, r->wr.atomic.rkey = far.mr->rkey;
    } else {
      int write = strcmp(kind, "write") == 0;
      r->opcode = write ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
      if (write && bytes <= 64) r->send_flags |= IBV_SEND_INLINE;
      r->wr.rdma.remote_addr = remote, r->wr.rdma.rkey = far.mr->rkey;
    }
  }
  long lists = 0;
  double begun = now(), ended;
  do {
    must(ibv_post_send(near.qp, requests, &bad), "post");
    struct ibv_wc done;
    int count;
    while ((count = ibv_poll_cq(near.cq, 1, &done)) == 0) continue;
    must(count < 0 || done.status != IBV_WC_SUCCESS, "completion");
    ++lists;
  } while ((ended = now()) - begun < seconds);
  printf("%.3f\n", lists / (ended - begun));
  return 0;
}
