-- name: LockQuotas :one
select running_machines, prompts_per_minute from quotas where tenant_id = app_tenant() for update;

-- name: TakePrompt :exec
-- One prompt of this minute; where the limit is reached it refuses the transaction (db.Fenced: prompts). clock_timestamp,
-- since a transaction that waited for the row began before the minute it counts in.
with taken as (
    update quotas set
        prompt_count  = case when prompt_minute >= date_trunc('minute', clock_timestamp()) then prompt_count + 1 else 1 end,
        prompt_minute = greatest(prompt_minute, date_trunc('minute', clock_timestamp()))
    where tenant_id = app_tenant()
      and case when prompt_minute >= date_trunc('minute', clock_timestamp()) then prompt_count else 0 end
          < coalesce(prompts_per_minute, @default_limit::int)
    returning tenant_id
)
select fence('prompts', exists (select from taken));

-- name: QuotaUse :one
select running_machines, prompts_per_minute,
    (case when prompt_minute >= date_trunc('minute', clock_timestamp()) then prompt_count else 0 end)::int as prompts,
    (greatest(prompt_minute, date_trunc('minute', clock_timestamp())) + interval '1 minute')::timestamptz as prompts_reset_at,
    extract(epoch from greatest(prompt_minute, date_trunc('minute', clock_timestamp())) + interval '1 minute' - clock_timestamp())::float8 as prompts_reset_in,
    (select count(*) from machines m where m.tenant_id = app_tenant() and m.status in ('pending', 'starting', 'ready'))::int as machines
from quotas where tenant_id = app_tenant();
