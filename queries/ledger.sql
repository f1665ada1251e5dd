-- name: InsertEgressRequest :exec
-- Delivered twice, stored once.
insert into egress_requests (tenant_id, id, at, workspace_id, machine_id, conversation_id, listener, method, host, port, decision, rule,
    credential_keys, status, bytes_in, bytes_out, latency_ms, duration_ms, dropped, error)
values (app_tenant(), @id, @at, @workspace_id, @machine_id, sqlc.narg('conversation_id'), @listener, @method, @host, @port, @decision, @rule,
    @credential_keys, @status, @bytes_in, @bytes_out, @latency_ms, @duration_ms, @dropped, @error)
on conflict do nothing;

-- name: EgressOfConversation :many
select * from egress_requests
where tenant_id = app_tenant() and conversation_id = @conversation_id and (sqlc.narg('before')::uuid is null or id < sqlc.narg('before'))
order by id desc limit @at_most;

-- name: EgressOfWorkspace :many
select * from egress_requests
where tenant_id = app_tenant() and workspace_id = @workspace_id and (sqlc.narg('before')::uuid is null or id < sqlc.narg('before'))
order by id desc limit @at_most;

-- name: InsertModelRequest :execrows
insert into model_requests (tenant_id, id, at, conversation_id, credential_id, source, provider, model_requested, model_answered, status,
    input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, first_byte_ms, latency_ms, completeness, dropped, error)
values (app_tenant(), @id, @at, @conversation_id, sqlc.narg('credential_id'), @source, @provider, @model_requested, @model_answered, @status,
    @input_tokens, @output_tokens, @cache_read_tokens, @cache_write_tokens, @first_byte_ms, @latency_ms, @completeness, @dropped, @error)
on conflict do nothing;

-- name: LockForSettling :one
-- Turns end and late rows arrive under the conversation's lock, so that every model request is settled exactly once.
select id from conversations where tenant_id = app_tenant() and id = @id for update;

-- name: OpenModelUse :one
-- What the turn that runs has used so far.
select count(*)::int as requests, coalesce(sum(output_tokens), 0)::bigint as output_tokens
from model_requests where tenant_id = app_tenant() and conversation_id = @conversation_id and turn_id is null;

-- name: SettleModelRequests :many
-- The requests that no turn has yet become the turn's; their sums by what paid and which model answered.
with mine as (
    update model_requests set turn_id = @turn_id::uuid
    where tenant_id = app_tenant() and conversation_id = @conversation_id and turn_id is null
    returning *)
select source, credential_id, provider, coalesce(nullif(model_answered, ''), model_requested)::text as model,
    sum(input_tokens)::bigint as input_tokens, sum(output_tokens)::bigint as output_tokens,
    sum(cache_read_tokens)::bigint as cache_read_tokens, sum(cache_write_tokens)::bigint as cache_write_tokens,
    count(*)::int as requests, (count(*) filter (where status not between 200 and 299 or error <> ''))::int as failed_requests
from mine group by source, credential_id, provider, coalesce(nullif(model_answered, ''), model_requested)
order by 4;

-- name: InsertUsageEntry :exec
insert into usage_entries (tenant_id, id, conversation_id, turn_id, attempt, source, credential_id, provider, model,
    input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost_micros, requests, failed_requests, machine_ms)
values (app_tenant(), @id, @conversation_id, @turn_id, @attempt, @source, sqlc.narg('credential_id'), @provider, @model,
    @input_tokens, @output_tokens, @cache_read_tokens, @cache_write_tokens, 0, @requests, @failed_requests, @machine_ms);

-- name: UsageEntries :many
select * from usage_entries
where tenant_id = app_tenant()
  and (sqlc.narg('conversation_id')::uuid is null or conversation_id = sqlc.narg('conversation_id'))
  and (sqlc.narg('turn_id')::uuid is null or turn_id = sqlc.narg('turn_id'))
  and (sqlc.narg('after')::uuid is null or id > sqlc.narg('after'))
order by id limit @at_most;

-- name: UsageOfTurn :one
select coalesce(sum(input_tokens), 0)::bigint as input, coalesce(sum(output_tokens), 0)::bigint as output,
    coalesce(sum(cache_read_tokens), 0)::bigint as cache_read, coalesce(sum(cache_write_tokens), 0)::bigint as cache_write,
    coalesce(sum(cost_micros), 0)::bigint as cost_micros, coalesce(sum(requests), 0)::int as requests,
    coalesce(sum(failed_requests), 0)::int as failed_requests,
    (not exists (select 1 from model_requests m where m.tenant_id = app_tenant() and m.turn_id = @turn_id::uuid
        and (m.completeness = 'partial' or m.completeness = 'none' and m.status between 200 and 299)))::bool as complete
from usage_entries u where u.tenant_id = app_tenant() and u.turn_id = @turn_id::uuid;

-- name: LateTurn :one
-- The turn that a request belongs to which is told of after the turn's end.
select * from turns
where tenant_id = app_tenant() and conversation_id = @conversation_id and prompt_sent_at is not null
order by (started_at <= @at::timestamptz) desc, turn_number desc limit 1;

-- name: RunningTurn :one
select id from turns where tenant_id = app_tenant() and conversation_id = @conversation_id and status = 'running';
