// Reasons by what there was too little of; each family has one colour everywhere.

const FAMILY = {
  kv_watermark: "capacity",
  kv_demand: "capacity",
  concurrency: "capacity",
  prefill_backlog: "capacity",
  no_endpoint: "capacity",
  engine_rejected: "capacity",
  engine_error: "capacity",
  engine_timeout: "capacity",
  evicted: "capacity",
  flood: "capacity",
  queue_full: "queue",
  queue_deadline: "queue",
  predicted_wait: "queue",
  mode_transactions_only: "mode",
  mode_protect: "mode",
  rate_limited: "plan",
  quota_exhausted: "plan",
  breaker_output_length: "conduct",
  agent_fanout: "conduct",
  agent_depth: "conduct",
  agent_budget: "conduct",
  agent_loop: "conduct",
  agent_cycle: "conduct",
  dependency_unmet: "conduct",
};

export const FAMILIES = ["capacity", "queue", "mode", "plan", "conduct", "other"];

export function familyOf(reason) {
  return FAMILY[reason] ?? "other";
}
