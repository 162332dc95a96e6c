// Runs the unmodified @salesforce/core against an emulator: signs in with an access token, queries,
// and waits for the event of a record that it creates once its StreamingClient has subscribed.
//   node core_client.cjs URL TOKEN CHANNEL
// Prints a JSON object.
const { AuthInfo, Connection, Org, StreamingClient } = require('@salesforce/core');
const [url, accessToken, channel] = process.argv.slice(2);

async function main() {
  const accessTokenOptions = { accessToken, instanceUrl: url, loginUrl: url };
  const authInfo = await AuthInfo.create({ username: accessToken, accessTokenOptions });
  const connection = await Connection.create({ authInfo });
  const org = await Org.create({ connection });
  const listed = await connection.query('SELECT Name FROM Account');
  const options = new StreamingClient.DefaultOptions(org, channel, (message) => ({
    completed: true,
    payload: message.sobject.Name,
  }));
  const streaming = await StreamingClient.create(options);
  await streaming.handshake();
  const received = await streaming.subscribe(
    () => connection.sobject('Account').create({ Name: 'new' }),
  );
  console.log(JSON.stringify({ version: connection.getApiVersion(), queried: listed.totalSize, received }));
  process.exit(0);
}

main().catch((error) => { console.error(error); process.exit(1); });
