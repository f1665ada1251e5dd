-- name: AppendEvents :exec
-- One conversation's rows in a caller's transaction. The counter's lock makes sequence order commit order. A conversation
-- without a counter refuses the transaction (db.Fenced: transcript).
with head as (
    update conversation_heads h set seq = h.seq + @n::int
    where h.tenant_id = app_tenant() and h.conversation_id = @conversation_id
    returning h.seq - @n::int as base
), added as (
    insert into events (tenant_id, conversation_id, seq, turn_id, type, body, raw)
    select app_tenant(), @conversation_id, head.base + r.ord, nullif(r.turn_id, '00000000-0000-0000-0000-000000000000'::uuid), r.type, r.body, r.raw
    from head, (select unnest(@turn_ids::uuid[]) as turn_id, unnest(@types::text[]) as type, unnest(@bodies::jsonb[]) as body,
                       unnest(@raws::text[]) as raw, generate_series(1, @n::int) as ord) r
)
select fence('transcript', exists (select from head));

-- name: TranscriptExists :one
select exists (select 1 from conversation_heads where tenant_id = app_tenant() and conversation_id = @conversation_id);

-- name: EventsAfter :many
-- Replay and live read with this one query: at most so many rows and about so many bytes, one row at least. more: of the
-- last row, whether others may follow it.
with page as (
    select e.*, sum(octet_length(e.raw) + pg_column_size(e.body)) over (order by e.seq) as bytes
    from (select i.* from events i
          where i.tenant_id = app_tenant() and i.conversation_id = @conversation_id and i.seq > @after
          order by i.seq limit @at_most) e
)
select p.conversation_id, p.seq, p.turn_id, p.type, p.body, p.raw, p.created_at, coalesce(t.turn_number, 0)::int as turn_number,
    ((select count(*) from page) = @at_most or (select count(*) from page) > row_number() over (order by p.seq))::bool as more
from page p
left join turns t on t.tenant_id = p.tenant_id and t.id = p.turn_id
where p.bytes <= @max_bytes::bigint or p.seq = (select min(seq) from page)
order by p.seq;

-- name: EventsBefore :many
-- The newest rows, oldest of them first: how a long conversation opens.
select * from (
    select e.*, coalesce(t.turn_number, 0)::int as turn_number
    from events e
    left join turns t on t.tenant_id = e.tenant_id and t.id = e.turn_id
    where e.tenant_id = app_tenant() and e.conversation_id = @conversation_id and e.seq < @before
    order by e.seq desc
    limit @at_most) newest
order by seq;

-- name: StreamState :one
-- Where a transcript ends, where it begins (0: it is empty), and what its conversation is doing.
select h.seq, c.status,
    coalesce((select e.seq from events e where e.tenant_id = c.tenant_id and e.conversation_id = c.id order by e.seq limit 1), 0)::bigint as first
from conversations c
join conversation_heads h on h.tenant_id = c.tenant_id and h.conversation_id = c.id
where c.tenant_id = app_tenant() and c.id = @conversation_id;

-- name: UpsertToolCall :exec
-- After the rows that tell of it, in their transaction. back: how many of them come after the one that does.
insert into tool_calls (tenant_id, conversation_id, turn_id, id, title, kind, status, input, exit_code, signal, duration_ms,
                        output_bytes, truncated, full_log_path, source, first_seq, last_seq, ended_at)
select app_tenant(), h.conversation_id, @turn_id::uuid, @id::text, @title::text, @kind::text, @status::text, sqlc.narg(input)::jsonb, sqlc.narg(exit_code)::int,
    @signal::text, sqlc.narg(duration_ms)::bigint, @output_bytes::bigint, @truncated::bool, @full_log_path::text, @source::jsonb, h.seq - @back::int, h.seq - @back::int,
    case when @status::text in ('completed', 'failed', 'interrupted') then now() end
from conversation_heads h where h.tenant_id = app_tenant() and h.conversation_id = @conversation_id::uuid
on conflict (tenant_id, conversation_id, turn_id, id) do update set
    title = case when excluded.title <> '' then excluded.title else tool_calls.title end,
    kind = case when excluded.kind <> '' then excluded.kind else tool_calls.kind end,
    status = excluded.status,
    input = coalesce(excluded.input, tool_calls.input),
    exit_code = coalesce(excluded.exit_code, tool_calls.exit_code),
    signal = case when excluded.signal <> '' then excluded.signal else tool_calls.signal end,
    duration_ms = coalesce(excluded.duration_ms, tool_calls.duration_ms),
    output_bytes = greatest(excluded.output_bytes, tool_calls.output_bytes),
    truncated = excluded.truncated or tool_calls.truncated,
    full_log_path = case when excluded.full_log_path <> '' then excluded.full_log_path else tool_calls.full_log_path end,
    source = tool_calls.source || excluded.source,
    last_seq = excluded.last_seq,
    ended_at = coalesce(excluded.ended_at, tool_calls.ended_at);

-- name: ToolCalls :many
select * from tool_calls where tenant_id = app_tenant() and conversation_id = @conversation_id
  and (sqlc.narg(turn_id)::uuid is null or turn_id = sqlc.narg(turn_id)::uuid)
order by first_seq;
